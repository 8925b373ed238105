package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// TestDeviceOwnership has a user who is not root open a device that the host keeps to its root (0600): /dev/zero under
// another name. It can with a handler that has device_ownership_from_security_context, and with no other.
func TestDeviceOwnership(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(runtime)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			device := filepath.Join(dir, "zero")
			if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil {
				t.Fatal(err)
			}
			r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf(`
[cdi]
spec_dirs = [%[2]q]
[runtimes.owned]
path = %[1]q
device_ownership_from_security_context = true
`, program, dir)})
			r.pull("busybox:latest")
			r.ok(os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(`{"cdiVersion":"0.7.0","kind":"vendor.com/gpu","devices":[
 {"name":"anybody","containerEdits":{"deviceNodes":[{"path":"/dev/bt","hostPath":"`+device+`"}]}},
 {"name":"vendor","containerEdits":{"deviceNodes":[{"path":"/dev/bt","hostPath":"`+device+`","uid":7,"gid":8}]}}]}`), 0o644))
			asked := func(c *v1.ContainerConfig) {
				c.Devices = append(c.Devices, &v1.Device{HostPath: device, ContainerPath: "/dev/bt", Permissions: "rw"})
			}
			user := func(uid, gid int64) edit {
				return security(func(s *v1.LinuxContainerSecurityContext) {
					s.RunAsUser, s.RunAsGroup = &v1.Int64Value{Value: uid}, &v1.Int64Value{Value: gid}
				})
			}
			plain, owned := r.pod(), r.podOf("owned")
			const script = "stat -c '%u:%g %a' /dev/bt; head -c 4 /dev/bt 2>/dev/null | wc -c"
			for _, c := range []struct {
				name   string
				pod    *pod
				device edit
				user   edit
				want   string
			}{
				{"without-the-key", plain, asked, user(1000, 2000), "0:0 600\n0"},
				{"with-the-key", owned, asked, user(1000, 2000), "1000:2000 600\n4"},
				{"root", owned, asked, user(0, 2000), "0:2000 600\n4"},
				{"cdi", plain, cdiDevice("vendor.com/gpu=anybody"), user(1000, 2000), "1000:2000 600\n4"},
				{"cdi-with-the-key", owned, cdiDevice("vendor.com/gpu=anybody"), user(1000, 2000), "1000:2000 600\n4"},
				{"cdi-of-the-vendor", owned, cdiDevice("vendor.com/gpu=vendor"), user(1000, 2000), "7:8 600\n0"},
			} {
				r.wantText(c.name, c.pod.output(busybox(c.name, script, both(c.device, c.user))), c.want)
			}
			// In a user namespace a runtime makes a node, as crun 1.8 does, or binds the host's, as runc does, which
			// keeps its owner.
			inside := r.podOf("owned", inUserns)
			kmsg := func(c *v1.ContainerConfig) {
				c.Devices = []*v1.Device{{HostPath: "/dev/kmsg", ContainerPath: "/dev/kmsg"}}
			}
			c := inside.start(busybox("userns", "sleep 1000", inside.like(), kmsg, user(1000, 2000)))
			if d := c.spec().RuntimeSpec.Linux.Devices[0]; *d.UID != 1000 || *d.GID != 2000 {
				r.Errorf("the runtime was given a device of %d:%d, wanted the ids of the container", *d.UID, *d.GID)
			}
			r.wantOwner("/dev/kmsg", 0, 0)
			r.wantOwner(device, 0, 0)
		})
	}
}
