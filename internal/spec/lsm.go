package spec

import (
	"errors"
	"fmt"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels are SELinux labels: of the processes and of the files of a pod.
type Labels struct{ Process, Mount string }

// usualLabels is what the container policy calls its types.
var usualLabels = Labels{Process: "system_u:system_r:container_t:s0", Mount: "system_u:object_r:container_file_t:s0"}

// apparmor names the profile of the process. RuntimeDefault, also where nothing is asked for, is the daemon's own
// profile; a privileged process has it not. A profile asked for by name must be had, by whomever.
func (b *build) apparmor() error {
	want, asked := b.security.GetApparmor(), true
	if want == nil {
		var err error
		//lint:ignore SA1019 old clients send it
		old := b.security.GetApparmorProfile()
		if want, err = oldProfile(old, "apparmor_profile", runtimeapi.SecurityProfile_RuntimeDefault); err != nil {
			return err
		}
		asked = old != ""
	}
	switch want.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined:
		return nil
	case runtimeapi.SecurityProfile_Localhost:
		return b.apparmorLocal(strings.TrimPrefix(want.GetLocalhostRef(), "localhost/"))
	}
	if b.privileged || !b.Host.AppArmor {
		return nil
	}
	if b.Host.AppArmorDefault == "" && asked {
		return errors.New("AppArmor profile of type RuntimeDefault: the daemon has not been able to load its own (berth doctor says why)")
	}
	b.out.Process.ApparmorProfile = b.Host.AppArmorDefault
	return nil
}

func (b *build) apparmorLocal(name string) error {
	switch {
	case name == "":
		return errors.New("AppArmor profile of type Localhost without a name: set localhost_ref")
	case !b.Host.AppArmor:
		return fmt.Errorf("AppArmor profile %s: this host does not enforce AppArmor", name)
	}
	b.out.Process.ApparmorProfile = name
	return nil
}

// labels sets the SELinux labels: the pod's, with what the request says in place of their parts. A privileged process
// has none, so the policy lets it be what the daemon is.
func (b *build) labels() {
	if !b.Host.SELinux {
		return
	}
	base := b.SELinux
	if base.Process == "" {
		base.Process = usualLabels.Process
	}
	if base.Mount == "" {
		base.Mount = usualLabels.Mount
	}
	opts := b.security.GetSelinuxOptions()
	if opts == nil {
		opts = b.Pod.GetLinux().GetSecurityContext().GetSelinuxOptions()
	}
	if !b.privileged {
		b.out.Process.SelinuxLabel = relabel(base.Process, opts)
	}
	b.out.Linux.MountLabel = relabel(base.Mount, &runtimeapi.SELinuxOption{Level: opts.GetLevel()})
}

// relabel replaces the parts of user:role:type:level that opts names.
func relabel(base string, opts *runtimeapi.SELinuxOption) string {
	parts := strings.SplitN(base, ":", 4)
	for i, v := range []string{opts.GetUser(), opts.GetRole(), opts.GetType(), opts.GetLevel()} {
		if v == "" {
			continue
		}
		for len(parts) <= i {
			parts = append(parts, "")
		}
		parts[i] = v
	}
	return strings.Join(parts, ":")
}
