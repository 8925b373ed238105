package spec

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// Labels are SELinux labels: of the processes and of the files of a pod, or of a container. A pod without any has none.
type Labels struct{ Process, Mount string }

// parts are those of a label that an SELinuxOption can name.
var labelParts = []struct {
	name string
	of   func(*runtimeapi.SELinuxOption) string
	form *regexp.Regexp
}{
	{"user", (*runtimeapi.SELinuxOption).GetUser, labelWord}, {"role", (*runtimeapi.SELinuxOption).GetRole, labelWord},
	{"type", (*runtimeapi.SELinuxOption).GetType, labelWord}, {"level", (*runtimeapi.SELinuxOption).GetLevel, labelLevel},
}

var (
	labelWord = regexp.MustCompile(`^[A-Za-z0-9_.$-]+$`)
	// labelLevel is one level, or a range of two: a sensitivity with its categories, some of which may be ranges.
	labelLevel = regexp.MustCompile(`^` + oneLevel + `(-` + oneLevel + `)?$`)
)

const oneLevel = `s\d{1,2}(:c\d{1,4}(\.c\d{1,4})?(,c\d{1,4}(\.c\d{1,4})?)*)?`

// CheckSELinux refuses options that can be part of no label, whatever the policy.
func CheckSELinux(o *runtimeapi.SELinuxOption) error {
	for _, p := range labelParts {
		if v := p.of(o); v != "" && !p.form.MatchString(v) {
			return fmt.Errorf("selinux_options: %q is no SELinux %s", v, p.name)
		}
	}
	return nil
}

// With returns the labels with what o names in the place of their parts. Files have the user and the level of the
// processes; their role and type are the policy's. Kubelets mount volumes by the same rule.
func (l Labels) With(o *runtimeapi.SELinuxOption) Labels {
	if l == (Labels{}) || o == nil {
		return l
	}
	return Labels{
		Process: relabel(l.Process, o),
		Mount:   relabel(l.Mount, &runtimeapi.SELinuxOption{User: o.User, Level: o.Level}),
	}
}

// Level is the fourth part of the labels, with the categories; "" where the policy knows no levels.
func (l Labels) Level() string {
	parts := strings.SplitN(l.Process, ":", 4)
	if len(parts) < 4 {
		return ""
	}
	return parts[3]
}

// ContainerLabels returns the labels of a container: those of its pod, with what it asks for in the place of their
// parts.
func ContainerLabels(pod Labels, c *runtimeapi.ContainerConfig) Labels {
	return pod.With(c.GetLinux().GetSecurityContext().GetSelinuxOptions())
}

// superType is the type of those whom the policy lets use any file.
const superType = "spc_t"

// Superuser reports whether a process with these labels may use files whatever their labels are.
func (l Labels) Superuser() bool {
	parts := strings.SplitN(l.Process, ":", 4)
	return len(parts) > 2 && parts[2] == superType
}

// apparmor names the profile of the process. RuntimeDefault, also where nothing is asked for, is the daemon's own
// profile; a privileged process has it not. Where the node has none, what asks for nothing runs without. A profile
// asked for by name must be had, by whomever.
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
	if b.AppArmorDefault == "" && asked {
		return fail.New(errdefs.ErrFailedPrecondition, "AppArmor profile of type RuntimeDefault: this node does not "+
			"have the runtime's own: berth doctor says what it lacks, or that the configuration has it off; the next try "+
			"looks again")
	}
	b.out.Process.ApparmorProfile = b.AppArmorDefault
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

// labels sets the SELinux labels. A pod that was made without any stays so. A process that has none is what the policy
// makes of one that the OCI runtime starts, which is unconfined: a privileged one, and one that shares the host's
// processes or IPC and names no type of its own.
func (b *build) labels() {
	if !b.Host.SELinux {
		return
	}
	l := b.SELinux.With(b.security.GetSelinuxOptions())
	if !b.unlabelled() {
		b.out.Process.SelinuxLabel = l.Process
	}
	b.out.Linux.MountLabel = l.Mount
}

func (b *build) unlabelled() bool {
	if b.privileged {
		return true
	}
	pod := b.Pod.GetLinux().GetSecurityContext()
	if b.security.GetSelinuxOptions().GetType() != "" || pod.GetSelinuxOptions().GetType() != "" {
		return false
	}
	const host = runtimeapi.NamespaceMode_NODE
	return slices.ContainsFunc([]*runtimeapi.NamespaceOption{b.security.GetNamespaceOptions(), pod.GetNamespaceOptions()},
		func(o *runtimeapi.NamespaceOption) bool { return o.GetPid() == host || o.GetIpc() == host })
}

// relabel replaces the parts of user:role:type:level that opts names.
func relabel(base string, opts *runtimeapi.SELinuxOption) string {
	parts := strings.SplitN(base, ":", 4)
	for i, p := range labelParts {
		v := p.of(opts)
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
