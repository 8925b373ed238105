package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	policy "berth/internal/selinux"
	modules "berth/packaging/selinux"
	"berth/test/fixture"
)

// opening is a module that allows containers what container-selinux allows them, of the sockets that they do not need.
const opening = `(allow container_domain self (alg_socket (create)))
(allow container_domain self (vsock_socket (create)))
(allow container_domain self (tipc_socket (create)))
(allow container_domain self (rds_socket (create)))
`

// TestSELinuxSocketFamilies asks the policy about sockets that no container needs, and has containers without a filter
// try them: as Debian's policy is, as container-selinux is, and with Berth's module above that.
func TestSELinuxSocketFamilies(t *testing.T) {
	needSELinux(t)
	if os.Getenv(enforcing) == "" {
		t.Skip("the policy only tells of what it does not allow")
	}
	wantPolicy := func(open bool) {
		t.Helper()
		n, err := policy.Open()
		if err != nil {
			t.Fatal(err)
		}
		classes, err := n.OpenSockets()
		if err != nil || slices.Contains(classes, "alg_socket") != open || slices.Contains(classes, "rds_socket") != open {
			t.Errorf("the policy lets containers make %v (%v), wanted alg and rds there: %v", classes, err, open)
		}
	}
	r := rig{t, sharedNode(t, runtimes()[0])}
	r.withProbes()
	p := r.pod()
	want := func(refused bool) {
		t.Helper()
		wantPolicy(!refused)
		for _, arch := range fixture.ProbeArchitectures() {
			for way, answers := range p.sockets(arch, seccomp(v1.SecurityProfile_Unconfined, "")) {
				for _, family := range exotic {
					if got := answers[family]; (got == "EACCES") != refused {
						r.Errorf("%s, %s: family %d gives %s, wanted refused: %v", arch, way, family, got, refused)
					}
				}
				for _, family := range []int{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} {
					if got := answers[family]; got != "ok" && got != "ENOTSUP" {
						r.Errorf("%s, %s: family %d, which every container uses, gives %s", arch, way, family, got)
					}
				}
			}
		}
	}
	want(true)
	dir := t.TempDir()
	r.ok(os.WriteFile(dir+"/berth-opening.cil", []byte(opening), 0o644))
	r.ok(os.WriteFile(dir+"/berth-sockets.cil", modules.Sockets, 0o644))
	loaded := []string{"-X", "200", "-r", "berth-opening"}
	defer func() { r.ok(semodule(loaded...)) }()
	r.ok(semodule("-X", "200", "-i", dir+"/berth-opening.cil"))
	want(false)
	r.ok(semodule("-X", "300", "-i", dir+"/berth-sockets.cil"))
	loaded = append(loaded, "-X", "300", "-r", "berth-sockets")
	want(true)
}

// semodule changes the policy of the machine, which takes it some seconds.
func semodule(args ...string) error {
	if out, err := exec.Command("semodule", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("semodule %v: %w: %s", args, err, out)
	}
	return nil
}
