package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

func cdiDevice(names ...string) edit {
	return func(c *v1.ContainerConfig) {
		for _, n := range names {
			c.CDIDevices = append(c.CDIDevices, &v1.CDIDevice{Name: n})
		}
	}
}

// TestCDI asks for devices that files describe which appear while the daemon runs.
func TestCDI(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf("[cdi]\nspec_dirs = [%q]\n", dir)})
			r.pull("busybox:latest")
			p := r.pod()
			refused := func(device string, code codes.Code) {
				_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("refused", "true", cdiDevice(device)), p.config)
				r.wantCode(err, code, device)
				p.wantNoContainer("refused")
			}
			refused("vendor.com/gpu=one", codes.NotFound)
			refused("gpu", codes.InvalidArgument)
			r.ok(os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(`{"cdiVersion":"0.7.0","kind":"vendor.com/gpu",
 "containerEdits":{"env":["ALL=1"],"mounts":[{"hostPath":"`+dir+`","containerPath":"/vendor","options":["ro","rbind"]}]},
 "devices":[{"name":"one","containerEdits":{"env":["GPU=one"],"additionalGids":[44],
   "deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/kmsg","permissions":"r"}]}},
  {"name":"gone","containerEdits":{"deviceNodes":[{"path":"/dev/gpu1","hostPath":"/dev/no-such-gpu"}]}}]}`), 0o644))
			c := p.start(busybox("user", "echo $ALL $GPU; head -c1 /dev/gpu0 | wc -c; echo x 2>/dev/null >/dev/gpu0 || echo "+
				"refused; ls /vendor; id -G; sleep 1000",
				both(cdiDevice("vendor.com/gpu=one"), caps([]string{"SYSLOG"}, nil))))
			c.logged("44")
			r.wantText("what the container has", c.text("stdout"), "1 one\n1\nrefused\ngpu.json\n0 44")
			r.wantText("an exec has it too", c.exec("sh", "-c", "echo $GPU"), "one")
			if got := c.status().GetUser().GetLinux().GetSupplementalGroups(); len(got) != 2 || got[1] != 44 {
				r.Errorf("the status shows the groups %v, wanted 0 and 44", got)
			}
			annotated := busybox("annotated", "echo $GPU")
			annotated.Annotations = map[string]string{"cdi.k8s.io/plugin_one": "vendor.com/gpu=one"}
			r.wantText("by an annotation", p.output(annotated), "one")
			refused("vendor.com/gpu=two", codes.NotFound)
			refused("vendor.com/gpu=gone", codes.InvalidArgument)
		})
	}
}
