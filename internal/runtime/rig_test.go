package runtime

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/monitor/wire"
	"berth/test/timeouts"
)

// rig is a pod with its monitor, and a directory for logs.
type rig struct {
	*testing.T
	*Runtime
	pod     string
	logs    string
	handler Handler
	made    []string // containers
	small   bool     // the disk of its logs is full at times

	mu    sync.Mutex // guards exits
	exits map[string][]Exit
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	g := newQuietRig(t)
	t.Cleanup(g.clear)
	return g
}

// newQuietRig makes one that is not cleared by itself.
func newQuietRig(t *testing.T) *rig {
	t.Helper()
	return newRigIn(t, newState(t))
}

// newRigIn makes a quiet one with that state directory.
func newRigIn(t *testing.T, state string) *rig {
	t.Helper()
	g := &rig{T: t, pod: newID(), exits: map[string][]Exit{}}
	dir := t.TempDir()
	g.logs = filepath.Join(dir, "logs")
	cfg := Config{
		Monitor: host.monitor, Root: filepath.Join(dir, "root"), State: state, Group: "berth-" + newID()[:6],
		Tracking: host.tracking, Helper: runHelper, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), OnExit: g.exited,
	}
	g.Runtime = g.must(New(cfg)).(*Runtime)
	g.handler = Handler{Name: "oci", Path: host.runtime, Root: filepath.Join(cfg.State, "runtime", "oci")}
	for _, d := range []string{g.logs, filepath.Join(g.cfg.dir(g.pod), "c"), g.cfg.exits(g.pod)} {
		g.ok(os.MkdirAll(d, 0o755))
	}
	g.ok(g.Launch(t.Context(), g.pod))
	return g
}

// newState makes a directory in memory.
func newState(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(host.state, newID()[:16])
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// clear removes all and checks that nothing is left.
func (g *rig) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), timeouts.For(30*time.Second))
	defer cancel()
	for _, c := range g.made {
		if err := g.Delete(ctx, g.pod, c, g.handler); err != nil {
			g.Errorf("delete: %v", err)
		}
	}
	if err := g.Shutdown(ctx, g.pod); err != nil {
		g.Errorf("shutdown: %v", err)
	}
	if left, _ := os.ReadDir(g.handler.Root); len(left) > 0 {
		g.Errorf("the runtime remembers %v", left)
	}
	for _, d := range []string{"monitors", "containers"} {
		if left, _ := filepath.Glob(filepath.Join(g.cfg.Tracking, g.cfg.Group, d, "*/cgroup.procs")); len(left) > 0 {
			g.Errorf("cgroups are left: %v", left)
		}
	}
	if err := cgroup.RemoveTree("/" + g.cfg.Group); err != nil {
		g.Errorf("cgroups: %v", err)
	}
	said, _ := os.ReadFile(filepath.Join(g.cfg.dir(g.pod), "m.log"))
	if bytes.Contains(said, []byte("DATA RACE")) || bytes.Contains(said, []byte("goroutine ")) || g.Failed() &&
		len(said) > 0 {
		g.Errorf("the monitor says:\n%s", said)
	}
}

func (g *rig) exited(_, ctr string, e Exit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.exits[ctr] = append(g.exits[ctr], e)
}

// exit waits for the end of a container that was told, and checks that it was told once.
func (g *rig) exit(ctr string) Exit {
	g.Helper()
	var e Exit
	g.within(15*time.Second, "the container's exit is told", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.exits[ctr]) > 1 {
			g.Fatalf("its exit was told more than once: %+v", g.exits[ctr])
		}
		if len(g.exits[ctr]) == 0 {
			return false
		}
		e = g.exits[ctr][0]
		return true
	})
	return e
}

func (g *rig) ok(err error) {
	g.Helper()
	if err != nil {
		g.Fatal(err)
	}
}

func (g *rig) must(v any, err error) any {
	g.Helper()
	g.ok(err)
	return v
}

// within waits until fn is true. It gives up after d and what a busy machine may add to that.
func (g *rig) within(d time.Duration, what string, fn func() bool) {
	g.Helper()
	d = timeouts.For(d + 30*time.Second)
	for end := time.Now().Add(d); !fn(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			g.Fatalf("not within %v: %s", d, what)
		}
	}
}

// spec is a container that runs a shell script, with a private PID namespace.
func (g *rig) spec(ctr, script string) *specs.Spec {
	return &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: host.rootfs},
		Process: shellProcess(script),
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + g.cfg.Group + "/" + g.pod + "/" + ctr,
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "ipc"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
		},
	}
}

func shellProcess(script string) *specs.Process {
	return &specs.Process{Args: []string{"sh", "-c", script}, Cwd: "/", Env: []string{"PATH=/bin"}}
}

// deadline is long enough for any call of a runtime.
var deadline = timeouts.For(30 * time.Second)

// create makes a container that is not started; change may alter how.
func (g *rig) create(script string, change ...func(*Create)) string {
	g.Helper()
	ctr := newID()
	c := Create{Container: ctr, Handler: g.handler, Spec: g.spec(ctr, script), Deadline: deadline}
	for _, fn := range change {
		fn(&c)
	}
	c.Spec.Process.Terminal = c.Terminal
	g.made = append(g.made, ctr)
	_, err := g.Create(g.Context(), g.pod, c)
	g.ok(err)
	return ctr
}

// run creates and starts a container.
func (g *rig) run(script string, change ...func(*Create)) string {
	g.Helper()
	ctr := g.create(script, change...)
	g.ok(g.Start(g.Context(), g.pod, ctr, g.log(ctr), deadline))
	return ctr
}

func (g *rig) log(ctr string) Log { return Log{Dir: g.logs, Path: ctr[:8] + "/0.log"} }

// logged is the log as it is on the disk.
func (g *rig) logged(ctr string) string {
	data, _ := os.ReadFile(filepath.Join(g.logs, g.log(ctr).Path))
	return string(data)
}

// said is what the container has written on its streams, put together from the log.
func (g *rig) said(ctr string) string {
	var b strings.Builder
	for _, e := range entries(g.T, g.logged(ctr)) {
		b.WriteString(e.text)
		if e.tag == "F" {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func (g *rig) hasSaid(ctr, text string) {
	g.Helper()
	g.within(15*time.Second, "the log has "+text, func() bool { return strings.Contains(g.said(ctr), text) })
}

// entry is one line of a log in CRI's format.
type entry struct {
	at                time.Time
	stream, tag, text string
}

func entries(t *testing.T, log string) (all []entry) {
	t.Helper()
	for line := range strings.Lines(log) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if !strings.HasSuffix(line, "\n") {
			break // being written
		}
		if len(f) != 4 || (f[2] != "P" && f[2] != "F") || (f[1] != "stdout" && f[1] != "stderr") {
			t.Fatalf("not an entry of a log: %q", line)
		}
		at, err := time.Parse(time.RFC3339Nano, f[0])
		if err != nil {
			t.Fatalf("the time of %q: %v", line, err)
		}
		all = append(all, entry{at, f[1], f[2], f[3]})
	}
	return all
}

// exec runs a script in a container, and returns what it writes to both streams in its order.
func (g *rig) exec(ctr, script string) (out string, code int) {
	g.Helper()
	file := g.must(os.CreateTemp(g.logs, "exec")).(*os.File)
	defer file.Close()
	res, err := g.Exec(g.Context(), g.pod, ctr, Exec{Process: shellProcess("exec 2>&1\n" + script), Stdout: file})
	g.ok(err)
	data := g.must(os.ReadFile(file.Name())).([]byte)
	return string(data), res.ExitCode
}

// monitor is the pid of the pod's monitor. One that was killed may still be in its cgroup when the next has come.
func (g *rig) monitor() int {
	g.Helper()
	var pids []int
	g.within(5*time.Second, "the pod has one monitor", func() bool {
		var err error
		pids, err = g.cfg.monitorGroup(g.pod).Pids()
		g.ok(err)
		return len(pids) == 1
	})
	return pids[0]
}

// killMonitor kills the monitor and waits for the next one.
func (g *rig) killMonitor() {
	g.Helper()
	old := g.monitor()
	g.ok(unix.Kill(old, unix.SIGKILL))
	g.within(10*time.Second, "another monitor takes over", func() bool {
		c, err := g.links.monitor(g.Context(), g.pod)
		return err == nil && c.pid != old && c.pid != 0
	})
}

// found is what the monitor says of a container.
func (g *rig) found(ctr string) (Found, bool) {
	g.Helper()
	list, err := g.links.get(g.pod).connect(g.Context())
	g.ok(err)
	f, ok := inventoryOf(list).Containers[ctr]
	return f, ok
}

func (g *rig) processOf(ctr string) Process {
	g.Helper()
	var p wire.Process
	g.ok(json.Unmarshal(g.must(os.ReadFile(filepath.Join(g.cfg.bundle(g.pod, ctr), "pid"))).([]byte), &p))
	return p
}

func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// alive says whether a process of this rig runs whose command line begins so. Other runs of these tests may have the
// same.
func (g *rig) alive(args ...string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range all {
		if d, _ := os.ReadFile(p); !strings.HasPrefix(string(d), strings.Join(args, "\x00")+"\x00") {
			continue
		}
		if groups, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cgroup")); strings.Contains(string(groups), g.cfg.Group) {
			return true
		}
	}
	return false
}

// program writes a shell script for a monitor to run. No process is begun meanwhile: until its exec it would have the
// file open for writing, and who runs that is told that it is busy.
func (g *rig) program(name, text string) string {
	g.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	path := filepath.Join(g.logs, name)
	g.ok(os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
	return path
}

// ends waits until a process has ended that was killed.
func (g *rig) ends(pid int, what string) {
	g.Helper()
	g.within(time.Second, what+" has ended", func() bool { return ended(pid) })
}

func runHelper(ctx context.Context, _ string, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	return cmd.Wait()
}
