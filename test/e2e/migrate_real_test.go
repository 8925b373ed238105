package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// containerdsVariable names programs of containerd, separated by colons, whose roots are taken over.
const containerdsVariable = "BERTH_TEST_CONTAINERD"

// TestMigrateRealContainerd has containerds pull an image as a kubelet asks them to, and takes it from their roots:
// while they run, which is refused, and once they are stopped.
func TestMigrateRealContainerd(t *testing.T) {
	programs := filepath.SplitList(os.Getenv(containerdsVariable))
	if len(programs) == 0 {
		t.Skip("no containerd is named by " + containerdsVariable)
	}
	own(t, func(r rig) {
		for i, program := range programs {
			version, err := exec.Command(program, "--version").CombinedOutput()
			r.ok(err)
			repo := fmt.Sprintf("%s-real-%d", r.repository(), i)
			_, target, _ := r.oldIndex(repo)
			c := r.containerd(program)
			c.pull(ref(repo + ":v1"))
			root := c.dir + "/root"
			args := []string{"migrate", "containerd", "--only", "images", "--root", root, "--into", r.TempDir()}
			if _, stderr, code := r.berth(args...); code == 0 || !strings.Contains(stderr, "stop it (systemctl stop") {
				r.Errorf("%s runs: code %d, %s", version, code, stderr)
			}
			c.stop()
			out := r.mustBerth(args...)
			r.Logf("%s%s", version, out)
			img := r.image(ref(repo + ":v1"))
			want := ref(repo) + "@" + target.String()
			if img == nil || !slices.Contains(img.RepoDigests, want) || !strings.Contains(out, ": taken over, ") {
				r.Fatalf("%s: %v, want %s: %s", version, img, want, out)
			}
			text := r.pod().output(node.Container("real", want, []string{"cat", "/srv/note"}))
			r.wantText(want, text, "from containerd")
			if out := r.mustBerth(args...); !strings.Contains(out, "is here already") {
				r.Errorf("%s again: %s", version, out)
			}
		}
	})
}

// otherRuntime is a containerd that runs.
type otherRuntime struct {
	rig
	dir string
	cmd *exec.Cmd
}

// containerd starts a containerd with directories of its own, which ends with the test.
func (r rig) containerd(program string) *otherRuntime {
	r.Helper()
	dir, err := os.MkdirTemp("", "bt-cd-") // its socket has a short name
	r.ok(err)
	c := &otherRuntime{rig: r, dir: dir}
	config := fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "%[1]s/s"
[plugins."io.containerd.internal.v1.opt"]
path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "%[1]s/cni"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "%[1]s/certs.d"
`, dir)
	hosts := filepath.Join(dir, "certs.d", shared.registry.Addr)
	text := fmt.Sprintf("server = %q\n", shared.registry.URL())
	r.ok(errors.Join(os.MkdirAll(hosts, 0o755), os.WriteFile(hosts+"/hosts.toml", []byte(text), 0o644),
		os.WriteFile(dir+"/config.toml", []byte(config), 0o644)))
	log, err := os.Create(dir + "/log")
	r.ok(err)
	c.cmd = exec.Command(program, "--config", dir+"/config.toml")
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNS}
	r.ok(c.cmd.Start())
	r.Cleanup(func() {
		c.stop()
		if r.Failed() {
			said, _ := os.ReadFile(dir + "/log")
			r.Logf("containerd said:\n%s", said)
		}
		r.ok(errors.Join(log.Close(), os.RemoveAll(dir)))
	})
	return c
}

func (c *otherRuntime) stop() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		_ = c.cmd.Wait()
	}
}

// pull has it pull an image over CRI, once it is up.
func (c *otherRuntime) pull(image string) {
	c.Helper()
	conn, err := grpc.NewClient("unix://"+c.dir+"/s", grpc.WithTransportCredentials(insecure.NewCredentials()))
	c.ok(err)
	defer func() { _ = conn.Close() }()
	client := v1.NewImageServiceClient(conn)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		_, err := client.PullImage(c.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: image}})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.Fatal(err)
		}
	}
}
