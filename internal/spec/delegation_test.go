package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/host"
)

// TestCgroupsGoByTheNamespace builds containers with and without a cgroup namespace, changes that as an NRI plugin may,
// and looks at what is mounted at /sys/fs/cgroup.
func TestCgroupsGoByTheNamespace(t *testing.T) {
	const (
		plain      = `{"linux":{"security_context":{"namespace_options":{"pid":"CONTAINER"}}}}`
		privileged = `{"linux":{"security_context":{"privileged":true,"namespace_options":{"pid":"CONTAINER"}}}}`
		mapped     = `{"namespace_options":{"pid":"CONTAINER","userns_options":{"mode":"POD",` +
			`"uids":[{"host_id":65536,"length":65536}],"gids":[{"host_id":65536,"length":65536}]}}}`
	)
	for name, c := range map[string]struct {
		container, pod, input string
		before, after         string // type and access; after the namespace was taken away, or added
		refused               bool
	}{
		"plain":      {container: plain, before: "cgroup ro", after: "bind ro"},
		"privileged": {container: privileged, before: "bind rw", after: "cgroup rw"},
		"privileged in a sandbox": {container: privileged, input: `{"Handler":{"Infra":true}}`,
			before: "cgroup rw", after: "cgroup rw"},
		"privileged on v1": {container: privileged, input: `{"Host":{"CgroupV2":false}}`,
			before: "cgroup rw", after: "cgroup rw"},
		"writable": {
			container: `{"linux":{"security_context":` + mapped + `}}`, pod: `{"linux":{"security_context":` + mapped + `}}`,
			input:  `{"Handler":{"CgroupWritable":true},"Delegated":true,"Paths":{"UserNS":"/run/berth/pods/p/ns/user"}}`,
			before: "cgroup rw", refused: true},
	} {
		in := testInput(t, sections{{"container", c.container}, {"pod", c.pod}, {"input", c.input}})
		s, _, err := Build(t.Context(), in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		own := func(ns specs.LinuxNamespace) bool { return ns.Type == specs.CgroupNamespace }
		if got := cgroupsOf(s); got != c.before {
			t.Errorf("%s: %q is mounted, wanted %q", name, got, c.before)
		}
		if had := slices.ContainsFunc(s.Linux.Namespaces, own); had {
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, own)
		} else {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
		}
		if err := PutCgroups(s, in); c.refused != errdefs.IsFailedPrecondition(err) || !c.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := cgroupsOf(s); !c.refused && got != c.after {
			t.Errorf("%s: %q is mounted after the change, wanted %q", name, got, c.after)
		}
	}
}

// TestCgroupsOfARequestStay has a request mount the host's cgroups itself.
func TestCgroupsOfARequestStay(t *testing.T) {
	in := testInput(t, sections{{"container",
		`{"linux":{"security_context":{"namespace_options":{"pid":"CONTAINER"}}}}`}})
	s, _, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	own := specs.Mount{Destination: "/sys/fs/cgroup", Type: "bind", Source: "/sys/fs/cgroup",
		Options: []string{"rbind", "ro"}}
	for i, m := range s.Mounts {
		if m.Destination == own.Destination {
			s.Mounts[i] = own
		}
	}
	if err := PutCgroups(s, in); err != nil || cgroupsOf(s) != "bind ro" {
		t.Errorf("%v: %q is mounted", err, cgroupsOf(s))
	}
}

// cgroupsOf is the type and the access of what is mounted at /sys/fs/cgroup.
func cgroupsOf(s *specs.Spec) string {
	for _, m := range s.Mounts {
		if m.Destination == "/sys/fs/cgroup" {
			return m.Type + " " + m.Options[len(m.Options)-1]
		}
	}
	return ""
}

// TestChangesOfPluginsKeepTheLimits builds containers with a writable /sys/fs/cgroup, and changes by which they are
// kept from raising their own limits, as an NRI plugin may.
func TestChangesOfPluginsKeepTheLimits(t *testing.T) {
	const (
		plain      = `"namespace_options":{"pid":"CONTAINER"},"seccomp":{}`
		privileged = plain + `,"privileged":true`
		mapped     = `"namespace_options":{"pid":"CONTAINER","userns_options":{"mode":"POD",` +
			`"uids":[{"host_id":65536,"length":65536}],"gids":[{"host_id":65536,"length":65536}]}}`
		on = `{"Handler":{"CgroupWritable":true},"Delegated":true,"Paths":{"UserNS":%q}}`
	)
	filter := func(more ...string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
				{Names: append([]string{"read"}, more...), Action: specs.ActAllow}}}
		}
	}
	userns := func(path string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
				return n.Type == specs.UserNamespace
			})
			if path != "" {
				s.Linux.Namespaces = append(s.Linux.Namespaces,
					specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
			}
		}
	}
	for name, c := range map[string]struct {
		security, input string
		change          func(*specs.Spec)
		refused         bool
	}{
		"nothing":                {plain, fmt.Sprintf(on, ""), func(*specs.Spec) {}, false},
		"a filter that denies":   {plain, fmt.Sprintf(on, ""), filter("write"), false},
		"a filter with unshare":  {plain, fmt.Sprintf(on, ""), filter("unshare"), true},
		"a filter with clone3":   {plain, fmt.Sprintf(on, ""), filter("clone3"), true},
		"no filter":              {plain, fmt.Sprintf(on, ""), func(s *specs.Spec) { s.Linux.Seccomp = nil }, true},
		"unshare, mapped":        {mapped, fmt.Sprintf(on, "/ns/user"), filter("unshare"), false},
		"no user namespace":      {mapped, fmt.Sprintf(on, "/ns/user"), userns(""), true},
		"another user namespace": {mapped, fmt.Sprintf(on, "/ns/user"), userns("/ns/other"), true},
		"unshare, privileged":    {privileged, fmt.Sprintf(on, ""), filter("unshare"), false},
		"unshare, not writable":  {plain, `{"Delegated":true}`, filter("unshare"), false},
	} {
		security := `{"linux":{"security_context":{` + c.security + `}}}`
		in := testInput(t, sections{{"container", security}, {"pod", security}, {"input", c.input}})
		in.Host.DefaultSeccomp = host.DefaultSeccomp
		s, _, err := Build(t.Context(), in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c.change(s)
		err = PutCgroups(s, in)
		if c.refused != errdefs.IsFailedPrecondition(err) || !c.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.refused && !strings.Contains(fmt.Sprint(err), "NRI plugin") {
			t.Errorf("%s: the error does not say who did it: %v", name, err)
		}
	}
}
