package spec

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/host"
)

// TestCgroupWritable looks at the mode of /sys/fs/cgroup with and without the handler's cgroup_writable.
func TestCgroupWritable(t *testing.T) {
	const (
		own        = `"namespace_options":{"pid":"CONTAINER"},"seccomp":{}`
		privileged = `{"linux":{"security_context":{"privileged":true}}}`
		on         = `"Handler":{"CgroupWritable":true}`
	)
	for name, c := range map[string]struct{ pod, security, input, want string }{
		"off": {security: own, input: `{"Delegated":true}`, want: "ro"},
		"on":  {security: own, input: `{"Delegated":true,` + on + `}`, want: "rw"},
		"privileged, not delegated": {pod: privileged, security: own + `,"privileged":true`,
			input: `{` + on + `}`, want: "rw"},
		"privileged on v1": {pod: privileged, security: own + `,"privileged":true`,
			input: `{` + on + `,"Host":{"CgroupV2":false}}`, want: "rw"},
	} {
		container := `{"linux":{"security_context":{` + c.security + `}}}`
		in := testInput(t, sections{{"pod", c.pod}, {"container", container}, {"input", c.input}})
		in.Host.DefaultSeccomp = host.DefaultSeccomp
		sp, _, err := Build(t.Context(), in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		i := slices.IndexFunc(sp.Mounts, func(m specs.Mount) bool { return m.Destination == "/sys/fs/cgroup" })
		if got := sp.Mounts[i].Options; !slices.Contains(got, c.want) {
			t.Errorf("%s: mounted with %v, wanted %s", name, got, c.want)
		}
	}
}

// TestRefusesCgroupNamespaces judges filters by whether a process below them can make a cgroup namespace.
func TestRefusesCgroupNamespaces(t *testing.T) {
	allow := func(name string, args ...specs.LinuxSeccompArg) *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"read", name}, Action: specs.ActAllow, Args: args},
			{Names: []string{"clone3"}, Action: specs.ActErrno},
		}}
	}
	masked := func(index uint, mask, want uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: index, Value: mask, ValueTwo: want, Op: specs.OpMaskedEqual}
	}
	for name, c := range map[string]struct {
		filter *specs.LinuxSeccomp
		arch   string
		want   bool
	}{
		"none":                    {nil, "amd64", false},
		"the default":             {host.DefaultSeccomp(nil), runtime.GOARCH, true},
		"the default, SYS_ADMIN":  {host.DefaultSeccomp([]string{"CAP_SYS_ADMIN"}), runtime.GOARCH, false},
		"allows by default":       {&specs.LinuxSeccomp{DefaultAction: specs.ActAllow}, "amd64", false},
		"logs by default":         {&specs.LinuxSeccomp{DefaultAction: specs.ActLog}, "amd64", false},
		"neither call":            {allow("write"), "amd64", true},
		"unshare":                 {allow("unshare"), "amd64", false},
		"unshare, if":             {allow("unshare", masked(0, newCgroup, 0)), "amd64", false},
		"clone3":                  {allow("clone3"), "amd64", false},
		"clone":                   {allow("clone"), "amd64", false},
		"clone, without":          {allow("clone", masked(0, newCgroup|0x10000000, 0)), "amd64", true},
		"clone, with":             {allow("clone", masked(0, newCgroup, newCgroup)), "amd64", false},
		"clone, another flag":     {allow("clone", masked(0, 0x10000000, 0)), "amd64", false},
		"clone, another argument": {allow("clone", masked(1, newCgroup, 0)), "amd64", false},
		"clone of s390x":          {allow("clone", masked(1, newCgroup, 0)), "s390x", true},
		"clone, equal": {allow("clone", specs.LinuxSeccompArg{Value: newCgroup, Op: specs.OpEqualTo}), "amd64",
			false},
	} {
		if got := refusesCgroupNamespaces(c.filter, c.arch); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestDeviceOwnership gives a device of the request, which is 5:6 on the host, to the user and group of the security
// context.
func TestDeviceOwnership(t *testing.T) {
	const on, off = `{"Handler":{"DeviceOwnershipFromSecurityContext":true}}`, `{}`
	for _, c := range []struct{ name, security, input, want string }{
		{"off", `"run_as_user":{"value":"1000"},"run_as_group":{"value":"2000"}`, off, "5:6"},
		{"on", `"run_as_user":{"value":"1000"},"run_as_group":{"value":"2000"}`, on, "1000:2000"},
		{"a user without a group", `"run_as_user":{"value":"1000"}`, on, "1000:6"},
		{"root with a group", `"run_as_user":{"value":"0"},"run_as_group":{"value":"2000"}`, on, "5:2000"},
		{"neither", `"supplemental_groups":["7"]`, on, "5:6"},
	} {
		in := testInput(t, sections{{"input", c.input}, {"container", `{"linux":{"security_context":{` + c.security + `,
			"namespace_options":{"pid":"CONTAINER"}}},"devices":[{"host_path":"/dev/owned"}]}`}})
		sp, _, err := Build(t.Context(), in)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		d := sp.Linux.Devices[0]
		if got := fmt.Sprintf("%d:%d", *d.UID, *d.GID); got != c.want {
			t.Errorf("%s: the device belongs to %s, wanted %s", c.name, got, c.want)
		}
	}
}
