package e2e

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// planted is in every secret of TestDebugDump.
const planted = "pLaNtEd"

// TestDebugDump has an archive made on a node that holds secrets wherever a pod and a registry may have them, one of
// them in the error of an undo that fails, and looks for them; then of a daemon that does not answer.
func TestDebugDump(t *testing.T) {
	own(t, func(r rig) {
		dir := filepath.Join(r.n.Certs, "vault.example")
		r.ok(os.MkdirAll(dir, 0o700))
		r.ok(os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte("server = \"https://me:"+planted+"1@vault.example\"\n"+
			"[host.\"https://vault.example\".header]\nAuthorization = [\"Basic "+planted+"2\"]\n"), 0o600))
		auth := &v1.AuthConfig{Username: "me", Password: planted + "3", IdentityToken: planted + "4"}
		_, _ = r.n.Images.PullImage(ctx(), &v1.ImageSpec{
			Image: ref("busybox:latest"), Annotations: map[string]string{"a": planted + "5"},
		}, auth, nil)
		p := r.pod(func(c *v1.PodSandboxConfig) {
			c.Annotations, c.Labels = map[string]string{"vault": planted + "6"}, map[string]string{"vault": planted + "7"}
		})
		c := p.start(busybox("main", "sleep 1000000 # "+planted+"8", func(c *v1.ContainerConfig) {
			c.Envs = append(c.Envs, &v1.KeyValue{Key: "VAULT", Value: []byte(planted + "9")})
			c.Annotations, c.Labels = map[string]string{"vault": planted + "a"}, map[string]string{"vault": planted + "b"}
			c.Args = append(c.Args, "--password="+planted+"c")
		}))
		// What the runtime says of a program that is not there quotes the program.
		command := func(c *v1.ContainerConfig) { c.Command = []string{"/" + planted + "d"} }
		bad, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("bad", "", command), p.config)
		if err == nil {
			err = r.n.Runtime.StartContainer(ctx(), bad)
		}
		if err == nil {
			r.Error("a program that is not there was started")
		}
		files := r.dump()
		for name, text := range files {
			if i := strings.Index(text, planted); i >= 0 {
				r.Errorf("%s holds a secret: …%s…", name, text[max(0, i-80):min(len(text), i+80)])
			}
		}
		for name, has := range map[string]string{
			"situations.jsonl": c.cid, "goroutines.txt": "goroutine ", "goroutines-sums.txt": "goroutine profile",
			"config.toml":  r.n.CNI,
			"version.json": "go1", "memory.json": "heapInUse", "host.json": "{", "limits.json": "[",
			"start.json": "[", "problems.json": "[",
			"threads.txt": "waits in", "heap.pprof": "", "about.txt": "berth",
		} {
			if text, ok := files[name]; !ok || !strings.Contains(text, has) {
				r.Errorf("%s lacks %q", name, has)
			}
		}
		if out := r.mustBerth("debug", "goroutines"); !strings.Contains(out, "google.golang.org/grpc") {
			r.Errorf("goroutines: %s", out)
		}
		if out := r.mustBerth("debug", "heap"); !strings.HasPrefix(out, "\x1f\x8b") {
			r.Error("the heap is no profile")
		}
		if out := r.mustBerth("debug", "lanes"); strings.Contains(out, c.cid[:12]) {
			r.Errorf("a container waits for something: %s", out)
		}
		if out := r.mustBerth("debug", "lanes", "--all"); !strings.Contains(out, c.cid[:12]) {
			r.Errorf("a container is not listed: %s", out)
		}

		r.ok(syscall.Kill(r.n.Pid(), syscall.SIGSTOP))
		defer func() { r.ok(syscall.Kill(r.n.Pid(), syscall.SIGCONT)) }()
		r.eventually("the daemon is stopped", func() bool { // on a busy machine a signal takes its time
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.n.Pid()))
			r.ok(err)
			return strings.Contains(string(status), "State:\tT")
		})
		files = r.dump("--timeout", "1s")
		if !strings.Contains(files["threads.txt"], "state T") ||
			!strings.Contains(files["about.txt"], "the daemon has said nothing for 1s") {
			r.Errorf("of a daemon that is stopped it is told: %v", files)
		}
	})
}

// dump has an archive made and returns its files by name.
func (r rig) dump(flags ...string) map[string]string {
	r.Helper()
	path := filepath.Join(r.TempDir(), "dump.tar.gz")
	r.mustBerth(slices.Concat([]string{"debug", "dump", "-o", path}, flags)...)
	f, err := os.Open(path)
	r.ok(err)
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		r.Errorf("the archive is %v, %v", info, err)
	}
	zip, err := gzip.NewReader(f)
	r.ok(err)
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		r.ok(err)
		text, err := io.ReadAll(archive)
		r.ok(err)
		if name := filepath.Base(head.Name); strings.HasSuffix(name, ".pprof") {
			plain, err := gzip.NewReader(strings.NewReader(string(text)))
			r.ok(err)
			text, err = io.ReadAll(plain)
			r.ok(err)
			files[name] = string(text)
		} else {
			files[name] = string(text)
		}
	}
}
