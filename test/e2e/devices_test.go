package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/docs"
	"berth/test/node"
	"berth/test/page"
)

// TestDevicesPage types what docs/devices.md says, and wants to see what it says. Directories of the node's are those
// of a machine, and the test's registry is docker.io.
func TestDevicesPage(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cdi, bin := dir+"/cdi", dir+"/bin"
			r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf("[cdi]\nspec_dirs = [%q]\n", cdi)})
			image := r.pull("busybox:latest")
			berth := r.n.Command()
			r.ok(os.Mkdir(bin, 0o755))
			r.ok(os.WriteFile(bin+"/sudo", []byte("#!/bin/sh\nexec \"$@\"\n"), 0o755))
			r.ok(os.Symlink(berth.Path, bin+"/berth"))
			here := strings.NewReplacer("/etc/cdi", cdi, "/opt/example-gpu", dir+"/example-gpu",
				"docker.io/library/busybox:latest", image, "berth run", "berth run --log-dir "+r.n.Logs)
			asked := 0
			for _, c := range page.Read(docs.Devices) {
				cmd := r.n.Command()
				cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", here.Replace(c.Command)}
				cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
				out := new(strings.Builder)
				cmd.Stdout, cmd.Stderr = out, out
				err := r.n.Space.Run(cmd) // some fail, and say why
				if !c.Pattern().MatchString(out.String()) {
					r.Errorf("%s: %v: it printed\n%s\nand the page says\n%s", c.Command, err, out, strings.Join(c.Prints, "\n"))
				}
				if strings.Contains(c.Command, "example.json") && strings.Contains(c.Command, "<<") {
					asked++
					r.asKubeletsAsk()
				}
			}
			if asked != 1 {
				r.Errorf("the page has %d descriptions of the device", asked)
			}
			if left, _ := filepath.Glob(cdi + "/*"); len(left) > 0 {
				r.Errorf("the page leaves %v", left)
			}
		})
	}
}

// asKubeletsAsk asks for the device of the page as kubelets do: by a field, and by an annotation.
func (r rig) asKubeletsAsk() {
	r.Helper()
	p := r.pod()
	const script = "echo $EXAMPLE_GPU; head -c 3 /dev/example-gpu0 | wc -c; echo x >/dev/example-gpu0 && " +
		"cat /usr/local/gpu/version; echo x 2>/dev/null >/usr/local/gpu/x || echo read-only; ls /usr/local/gpu/hook-ran"
	annotated := busybox("annotated", script)
	annotated.Annotations = map[string]string{"cdi.k8s.io/example-plugin": "example.com/gpu=0"}
	for _, config := range []*v1.ContainerConfig{busybox("field", script, cdiDevice("example.com/gpu=0")), annotated} {
		r.wantText(config.Metadata.Name, p.output(config), "0\n3\n1.2.3\nread-only\n/usr/local/gpu/hook-ran")
	}
}

// TestTerminalInTheNodesDev has containers that see the node's /dev, as those of debuggers and installers do, with a
// terminal. Runtimes put it over /dev/console, which is the node's there.
func TestTerminalInTheNodesDev(t *testing.T) {
	const console = "/dev/console"
	st, err := os.Stat(console)
	if err != nil {
		t.Skipf("the machine has no console: %v", err)
	}
	t.Cleanup(func() { _ = os.Chmod(console, st.Mode()) }) // some releases of runc open it to all
	each(t, func(r rig) {
		tty := func(c *v1.ContainerConfig) { c.Tty = true }
		const script = "test -c /dev/kmsg && test -t 0 && echo said >/dev/console"
		r.wantText("its output", r.pod().output(busybox("main", script, mount("/dev", "/dev"), tty)), "said")
	})
}
