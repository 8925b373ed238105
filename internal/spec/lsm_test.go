package spec

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// TestAppArmorProfiles is which profile each request gets, on a host that can load the daemon's own and on one
// that cannot.
func TestAppArmorProfiles(t *testing.T) {
	profile := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) *runtimeapi.SecurityProfile {
		return &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
	}
	standard := profile(runtimeapi.SecurityProfile_RuntimeDefault, "")
	none := profile(runtimeapi.SecurityProfile_Unconfined, "")
	mine := profile(runtimeapi.SecurityProfile_Localhost, "mine")
	for name, c := range map[string]struct {
		asked          *runtimeapi.SecurityProfile
		old            string
		privileged     bool
		loaded, others string // what is given where the daemon's own profile can be loaded, and where it cannot
	}{
		"nothing":    {loaded: "own"},
		"default":    {asked: standard, loaded: "own", others: "error"},
		"unconfined": {asked: none},
		"named":      {asked: mine, loaded: "mine", others: "mine"},
		"named with a prefix": {asked: profile(runtimeapi.SecurityProfile_Localhost, "localhost/mine"), loaded: "mine",
			others: "mine"},
		"old default":            {old: "runtime/default", loaded: "own", others: "error"},
		"old named":              {old: "localhost/mine", loaded: "mine", others: "mine"},
		"old unconfined":         {old: "unconfined"},
		"privileged":             {privileged: true},
		"privileged and default": {privileged: true, asked: standard},
		"privileged and named":   {privileged: true, asked: mine, loaded: "mine", others: "mine"},
	} {
		for own, want := range map[string]string{"own": c.loaded, "": c.others} {
			b := &build{Input: Input{Host: Host{AppArmor: true}, AppArmorDefault: own}, privileged: c.privileged,
				out: &specs.Spec{Process: &specs.Process{}}}
			//lint:ignore SA1019 old clients send it
			b.security = &runtimeapi.LinuxContainerSecurityContext{Apparmor: c.asked, ApparmorProfile: c.old}
			got := ""
			if err := b.apparmor(); err != nil {
				got = "error"
				if own == "" && !fail.Is(err, errdefs.ErrFailedPrecondition) {
					t.Errorf("%s: the node lacks something, and the error is %v", name, err)
				}
			} else {
				got = b.out.Process.ApparmorProfile
			}
			if got != want {
				t.Errorf("%s, where the daemon has %q: %q, want %q", name, own, got, want)
			}
		}
	}
}
