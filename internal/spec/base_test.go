package spec

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// TestDeviceRules puts the rules of a base among those of a container: the last that fits counts.
func TestDeviceRules(t *testing.T) {
	n := int64(7)
	rule := func(allow bool, kind string, major *int64, access string) specs.LinuxDeviceCgroup {
		return specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Access: access}
	}
	none, all := rule(false, "", nil, "rwm"), rule(true, "", nil, "rwm")
	asked, more, less := rule(true, "c", &n, "rw"), rule(true, "b", &n, "r"), rule(false, "c", nil, "m")
	type rules = []specs.LinuxDeviceCgroup
	for name, c := range map[string]struct{ ours, base, want rules }{
		"no rules in the base": {rules{none, asked}, nil, rules{none, asked}},
		"what tools print":     {rules{none, asked}, rules{none}, rules{none, asked}},
		"what tools print, and more": {
			rules{none, asked}, rules{rule(false, "a", nil, "rwm"), more}, rules{none, more, asked}},
		"all is taken back":              {rules{none, asked}, rules{more, none}, rules{none, asked}},
		"a denial of some":               {rules{none, asked}, rules{more, less}, rules{none, more, less, asked}},
		"all are allowed":                {rules{none, asked}, rules{all}, rules{none, all, asked}},
		"a privileged container has all": {rules{all}, rules{none, less}, rules{all}},
	} {
		if got := deviceRules(c.ours, c.base); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v; wanted %+v", name, got, c.want)
		}
	}
}

// TestBaseLeavesTheRequest has a base, and what changes a spec afterwards, add to limits that the request names. The
// request is what a record keeps, and stays as it was.
func TestBaseLeavesTheRequest(t *testing.T) {
	base, err := ParseBase([]byte(`{"linux":{"resources":{"unified":{"memory.high":"50000000"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	in := testInput(t, sections{{"container",
		`{"linux":{"resources":{"unified":{"memory.oom.group":"1"}},"security_context":{"namespace_options":{"pid":"CONTAINER"}}}}`}})
	in.Host.CgroupV2, in.Handler.Base = true, base
	container, pod := proto.Clone(in.Container), proto.Clone(in.Pod)
	sp, _, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"memory.oom.group": "1", "memory.high": "50000000"}
	if got := sp.Linux.Resources.Unified; !maps.Equal(got, want) {
		t.Errorf("the limits are %v, wanted %v", got, want)
	}
	sp.Linux.Resources.Unified["pids.max"] = "7"
	if !proto.Equal(in.Container, container) || !proto.Equal(in.Pod, pod) {
		t.Errorf("the request is now %v of %v, was %v of %v", in.Container, in.Pod, container, pod)
	}
	update, _, err := Resources(in.Container.Linux.Resources, in.Host)
	if err != nil {
		t.Fatal(err)
	}
	update.Unified["pids.max"] = "7"
	if !proto.Equal(in.Container, container) {
		t.Errorf("the request for an update is now %v", in.Container)
	}
}

// withBase is a container of a handler with a base.
func withBase(t *testing.T, base, security string) Input {
	t.Helper()
	parsed, err := ParseBase([]byte(base))
	if err != nil {
		t.Fatal(err)
	}
	in := testInput(t, sections{{"container", `{"linux":{"security_context":` + security + `}}`}})
	in.Handler.Base = parsed
	own := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	in.Container.Linux.SecurityContext.NamespaceOptions = own
	return in
}

// TestBaseCapabilities gives a container that names no capabilities those of the base, to which a request adds and from
// which it drops. A base that says nothing of capabilities changes none.
func TestBaseCapabilities(t *testing.T) {
	const base = `{"process":{"capabilities":{"bounding":["CAP_KILL","CAP_CHOWN"]}}}`
	for _, c := range []struct {
		name, base, security string
		want                 []string
	}{
		{"nothing is asked for", base, `{}`, []string{"CAP_CHOWN", "CAP_KILL"}},
		{"one more and one less", base, `{"capabilities":{"add_capabilities":["NET_RAW"],"drop_capabilities":["KILL"]}}`,
			[]string{"CAP_CHOWN", "CAP_NET_RAW"}},
		{"none", base, `{"capabilities":{"drop_capabilities":["ALL"]}}`, nil},
		{"all", base, `{"capabilities":{"add_capabilities":["ALL"]}}`, knownCaps},
		{"privileged", base, `{"privileged":true}`, knownCaps},
		{"a base that has none", `{"process":{"capabilities":{}}}`, `{}`, nil},
		{"a base that says nothing", `{"process":{"env":["A=b"]}}`, `{}`,
			slices.SortedFunc(slices.Values(defaultCaps), capOrder)},
	} {
		sp, _, err := Build(t.Context(), withBase(t, c.base, c.security))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := sp.Process.Capabilities; !slices.Equal(got.Bounding, c.want) || !slices.Equal(got.Effective, c.want) ||
			!slices.Equal(got.Permitted, c.want) || len(got.Inheritable)+len(got.Ambient) > 0 {
			t.Errorf("%s: %+v, wanted %v", c.name, got, c.want)
		}
	}
}

// TestWithheld are the usual capabilities that a base leaves out, and none of one that says nothing of them.
func TestWithheld(t *testing.T) {
	for base, want := range map[string][]string{
		"": nil, `{"process":{"env":["A=b"]}}`: nil, `{"process":{"capabilities":{}}}`: defaultCaps,
		`{"process":{"capabilities":{"bounding":["CAP_BPF","` + strings.Join(defaultCaps[1:], `","`) + `"]}}}`: {"CAP_CHOWN"},
	} {
		var b *Base // as a handler without one has
		if base != "" {
			b = &Base{json: []byte(base)}
		}
		if got := b.Withheld(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, wanted %v", base, got, want)
		}
	}
}

// TestBaseSeccomp gives a container the filter of the base where no other is asked for, which a kubelet says as
// Unconfined.
func TestBaseSeccomp(t *testing.T) {
	const base = `{"linux":{"seccomp":{"defaultAction":"SCMP_ACT_LOG"}}}`
	for name, c := range map[string]struct {
		security string
		want     specs.LinuxSeccompAction
	}{
		"nothing is asked for":   {`{}`, specs.ActLog},
		"Unconfined":             {`{"seccomp":{"profile_type":"Unconfined"}}`, specs.ActLog},
		"unconfined, of old":     {`{"seccomp_profile_path":"unconfined"}`, specs.ActLog},
		"RuntimeDefault":         {`{"seccomp":{"profile_type":"RuntimeDefault"}}`, specs.ActErrno},
		"a privileged container": {`{"privileged":true}`, ""},
	} {
		in := withBase(t, base, c.security)
		sp, _, err := Build(t.Context(), in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got specs.LinuxSeccompAction
		if f := sp.Linux.Seccomp; f != nil {
			got = f.DefaultAction
		}
		if got != c.want {
			t.Errorf("%s: the filter's default is %q, wanted %q", name, got, c.want)
		}
		if in.Host.Seccomp = false; c.want == specs.ActLog {
			if _, _, err := Build(t.Context(), in); !fail.Is(err, errdefs.ErrFailedPrecondition) {
				t.Errorf("%s, where the host has no filters: %v", name, err)
			}
		}
	}
}

// TestBaseSysctls are those of namespaces that the pod has, and that the pod does not set by whatever name.
func TestBaseSysctls(t *testing.T) {
	b, err := ParseBase([]byte(`{"linux":{"sysctl":{"net.core.somaxconn":"9","net/ipv4/ip_forward":"1","kernel.sem":"1 2",
		"kernel.domainname":"x"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]string{"net.ipv4.ip_forward": "0", "nonsense": ""}
	want := map[string]string{"net.core.somaxconn": "9", "kernel.sem": "1 2", "kernel.domainname": "x"}
	if got := b.Sysctls(own, true, true, true); !maps.Equal(got, want) {
		t.Errorf("of a usual pod %v, wanted %v", got, want)
	}
	if got := b.Sysctls(nil, false, true, false); !maps.Equal(got, map[string]string{"kernel.sem": "1 2"}) {
		t.Errorf("of a pod with the node's network %v", got)
	}
}

// TestBasesThatAreNone are refused when they are read, not when a container is made.
func TestBasesThatAreNone(t *testing.T) {
	call := `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["bpf"],"action":"no"}]}`
	for base, want := range map[string]string{
		`{"process":{"capabilities":{"bounding":["CAP_FLY"]}}}`: `process.capabilities.bounding: "CAP_FLY"`,
		`{"process":{"capabilities":{"bounding":["ALL"]}}}`:     `process.capabilities.bounding: "ALL"`,
		`{"linux":{"sysctl":{"vm.swappiness":"1"}}}`:            "linux.sysctl: sysctl vm.swappiness: it is the node's",
		`{"linux":{"sysctl":{"net.../../x":"1"}}}`:              "linux.sysctl: ",
		`{"linux":{"seccomp":{}}}`:                              `linux.seccomp: defaultAction "" is not known`,
		`{"linux":{"seccomp":` + call + `}}`:                    "linux.seccomp: rule 0",
		"{\n\"process\":{\"x\":1}}":                             `line 2: json: unknown field "x"`,
	} {
		if _, err := ParseBase([]byte(base)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted %s", base, err, want)
		}
	}
}

// TestUnused has nothing to say of what tools print, but of each part of a base that containerd would give its
// containers and Berth does not.
func TestUnused(t *testing.T) {
	const usual = `"process":{"terminal":true,"user":{"uid":0,"gid":0},"args":["sh"],"env":["A=b"],"cwd":"/",
		"capabilities":{"bounding":["CAP_KILL"],"effective":["CAP_KILL"],"permitted":["CAP_KILL"],"ambient":["CAP_KILL"]},
		"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024}],"noNewPrivileges":true}`
	for base, want := range map[string][]string{
		`{"ociVersion":"1.2.0",` + usual + `,"root":{"path":"rootfs"},"mounts":[
			{"destination":"/proc","type":"proc","source":"proc","options":["nosuid","noexec","nodev"]},
			{"destination":"/dev/shm","type":"tmpfs","source":"shm","options":["size=1g"]},
			{"destination":"/run","type":"tmpfs","source":"tmpfs","options":["size=1g"]},
			{"destination":"/opt","type":"bind","source":"/opt","options":["rbind"]}],
		 "linux":{"seccomp":{"defaultAction":"SCMP_ACT_LOG"},"sysctl":{"net.core.somaxconn":"9"},"cgroupsPath":"/x",
			"resources":{"devices":[{"allow":false,"access":"rwm"}]},"maskedPaths":["/proc/kcore"],"readonlyPaths":["/proc/sys"],
			"namespaces":[{"type":"pid"},{"type":"network"},{"type":"mount"}]}}`: nil,
		`{"process":{"cwd":"","user":{"uid":0,"gid":0}}}`: {"the lack of process.capabilities"},
		`{"hostname":"h","root":{"path":"/","readonly":true},"vm":{"kernel":{"path":"/k"}},
		 "process":{"cwd":"/srv","user":{"uid":7,"gid":0,"umask":63},"apparmorProfile":"p",
			"capabilities":{"inheritable":["CAP_KILL"]},"ioPriority":{"class":"IOPRIO_CLASS_IDLE","priority":1},"scheduler":{"policy":"SCHED_BATCH"}},
		 "mounts":[{"destination":"/proc/","type":"proc","source":"proc","options":["nosuid","hidepid=2"]}],
		 "linux":{"namespaces":[{"type":"time"}],"timeOffsets":{"boottime":{"secs":1}},
			"uidMappings":[{"containerID":0,"hostID":1,"size":1}],"memoryPolicy":{"mode":"MPOL_BIND","nodes":"0"}}}`: {
			"the options of the mount at /proc", "hostname", "linux.memoryPolicy", "linux.namespaces", "linux.timeOffsets",
			"linux.uidMappings", "process.apparmorProfile", "process.capabilities.inheritable", "process.cwd",
			"process.ioPriority", "process.scheduler", "process.user.uid", "process.user.umask", "root.readonly", "vm",
		},
	} {
		b, err := ParseBase([]byte(base))
		if err != nil {
			t.Error(err)
			continue
		}
		var got []string
		for _, p := range b.Unused() {
			if got = append(got, p.Name); p.Why == "" {
				t.Errorf("%s: no reason", p.Name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, wanted %q", base, got, want)
		}
	}
}
