package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// trialTimeout bounds each run of a runtime in a trial. They take some tens of milliseconds.
const trialTimeout = 15 * time.Second

// TryRuntime makes a throwaway container with a runtime as its handler calls it, as far as create: by then it has made
// namespaces, mounts and cgroups, which is where runtimes fail on a host they do not know. The container's program is
// never started. All of it is below a new name in stateDir and in the cgroups, and gone when TryRuntime returns. run
// runs a program and leaves nothing of it behind; the runs of one trial come under one name, one after the other.
// driver is the cgroup driver.
func TryRuntime(ctx context.Context, r Runtime, stateDir, driver string,
	run func(ctx context.Context, name string, cmd *exec.Cmd) error) Runtime {
	t := newTrial(r, stateDir, run)
	t.systemd = driver == SystemdDriver
	r.Works, r.Why = false, ""
	// What an earlier daemon left when it was killed in the middle of a trial.
	err := t.undo(ctx)
	if err == nil {
		r.Program, r.Version, err = t.version(ctx)
	}
	if err == nil {
		err = errors.Join(t.create(ctx), t.undo(ctx))
	}
	if err != nil {
		r.Why = err.Error()
		r.unsure = ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)
		return r
	}
	r.Works = true
	return r
}

// SweepTrials ends and removes what a daemon that was killed in the middle of a trial left in stateDir and in the
// cgroups. No trial may be under way.
func SweepTrials(stateDir, driver string) error {
	dirs, err := filepath.Glob(filepath.Join(stateDir, "berth-trial-*"))
	for _, dir := range dirs {
		t := &trialContainer{id: filepath.Base(dir), dir: dir, systemd: driver == SystemdDriver}
		err = errors.Join(err, t.removeCgroups(), removeTree(dir)) // its runtime's state is in dir
	}
	return err
}

// trialContainer is one throwaway container. Its names derive from the runtime and the state directory alone.
type trialContainer struct {
	path    string   // of the runtime
	more    []string // its handler's arguments
	id      string   // of the container, and the name of its cgroup
	dir     string
	systemd bool   // systemd makes its cgroup, as a scope
	userns  string // the user namespace that it joins, "" for the host's
	run     func(ctx context.Context, name string, cmd *exec.Cmd) error
}

func newTrial(r Runtime, stateDir string, run func(context.Context, string, *exec.Cmd) error) *trialContainer {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{r.Path, stateDir}, r.Args...), "\x00")))
	id := "berth-trial-" + hex.EncodeToString(sum[:])[:12]
	return &trialContainer{path: r.Path, more: r.Args, id: id, dir: filepath.Join(stateDir, id), run: run}
}

// version asks the runtime what it is, the first word of the first line, and for its version, the last.
func (t *trialContainer) version(ctx context.Context) (program, version string, err error) {
	var out bytes.Buffer
	if err := t.exec(ctx, &out, "--version"); err != nil {
		return "", "", err
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	words := strings.Fields(first)
	if len(words) == 0 {
		return "", "", fmt.Errorf("%s --version says nothing", t.path)
	}
	return words[0], words[len(words)-1], nil
}

func (t *trialContainer) exec(ctx context.Context, stdout *bytes.Buffer, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	cmd := exec.Command(t.path, args...)
	if stdout != nil {
		cmd.Stdout = stdout
	}
	return t.run(ctx, t.id, cmd)
}

// execOwn gives the runtime no stream that is the host's: crun gives even /dev/null away, to the user of the container,
// and changes its times where that is root.
func (t *trialContainer) execOwn(ctx context.Context, bundle string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	in, err := os.Open(filepath.Join(bundle, "rootfs", "program")) // it is empty
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(t.dir, "said"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(t.path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	if err := t.run(ctx, t.id, cmd); err != nil {
		said := make([]byte, 512)
		n, _ := out.ReadAt(said, 0)
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(said[:n]))
	}
	return nil
}

func (t *trialContainer) state() string { return filepath.Join(t.dir, "state") }

func (t *trialContainer) create(ctx context.Context) error {
	bundle := filepath.Join(t.dir, "bundle")
	if err := t.prepare(bundle); err != nil {
		return fmt.Errorf("prepare a trial: %w", err)
	}
	return t.execOwn(ctx, bundle, t.args("create", "--bundle", bundle, t.id)...)
}

// args are those of a call that is about the container.
func (t *trialContainer) args(more ...string) []string {
	args := []string{"--root", t.state()}
	if t.systemd {
		args = append(args, "--systemd-cgroup")
	}
	args = append(args, t.more...)
	return append(args, more...)
}

// cgroup is the container's, as a runtime takes it, and where that is in the hierarchies.
func (t *trialContainer) cgroup() (oci, path string) {
	if !t.systemd {
		return "/" + t.id, t.id
	}
	oci = "system.slice:" + t.id + ":container"
	path, _ = cgroup.ScopePath(oci)
	return oci, path
}

// prepare makes the bundle. Its program has to be there, and need not be one: it is not started. Yet a runtime refuses
// one that could not be started, as on the file system of the state directory: Debian mounts /run noexec. So the root
// is a mount of its own, as that of every container is. It goes with the rest, by removeTree.
func (t *trialContainer) prepare(bundle string) error {
	root := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("berth-trial", root, "tmpfs", 0, "size=64k,mode=0755"); err != nil {
		return &fs.PathError{Op: "mount a tmpfs", Path: root, Err: err}
	}
	for _, dir := range []string{t.state(), filepath.Join(root, "proc"), filepath.Join(root, "dev")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, "program"), nil, 0o755); err != nil {
		return err
	}
	sp := t.spec()
	if t.userns != "" {
		t.joinUserns(sp)
		if err := t.giveRoot(root); err != nil {
			return err
		}
	}
	data, err := json.Marshal(sp)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600)
}

// spec uses what nearly every container uses, and no more.
func (t *trialContainer) spec() *specs.Spec {
	group, _ := t.cgroup()
	pids := int64(16)
	return &specs.Spec{
		Version: "1.0.0",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Cwd: "/", Args: []string{"/program"}, NoNewPrivileges: true},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=64k"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: group,
			Resources:   &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
}

// undo removes what there is of the container, also after the caller's time is up. It succeeds when there is nothing.
func (t *trialContainer) undo(ctx context.Context) error {
	if _, err := os.Lstat(t.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	// A runtime that made nothing has nothing to delete, and each says so in its own way: what is left is what counts.
	deleted := t.exec(ctx, nil, t.args("delete", "--force", t.id)...)
	if err := t.removeCgroups(); err != nil {
		return errors.Join(err, deleted)
	}
	if err := removeTree(t.dir); err != nil {
		return fmt.Errorf("remove a trial: %w", errors.Join(err, deleted))
	}
	return nil
}

// removeCgroups removes the container's cgroups, which runtimes leave behind when they fail half way, with what runs
// in them.
func (t *trialContainer) removeCgroups() error {
	_, path := t.cgroup()
	if err := cgroup.RemoveTree(filepath.Join("/", path)); err != nil {
		return fmt.Errorf("remove a trial's cgroup: %w", err)
	}
	return nil
}
