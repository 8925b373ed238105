package spec

import (
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestRefuses: what contradicts itself, the pod or the host is an error that names the culprit.
func TestRefuses(t *testing.T) {
	own := `"namespace_options":{"pid":"CONTAINER"}`
	ids := `"userns_options":{"uids":[{"host_id":1000,"length":10}],"gids":[{"host_id":1000,"length":5}]}`
	for name, c := range map[string]struct{ pod, container, image, input, seccomp, want string }{
		"no command": {container: `{"linux":{"security_context":{` + own + `}}}`, image: `{"Cmd":[]}`,
			want: "neither the container nor its image"},
		"NUL in argument": {container: `{"args":["a\u0000b"],"linux":{"security_context":{` + own + `}}}`, want: "NUL"},
		"variable name": {container: `{"envs":[{"key":"A=B"}],"linux":{"security_context":{` + own + `}}}`,
			want: `"A=B"`},
		"variable value": {container: `{"envs":[{"key":"A","value":"AA=="}],"linux":{"security_context":{` + own +
			`}}}`, want: "NUL"},
		"capability": {container: `{"linux":{"security_context":{` + own +
			`,"capabilities":{"add_capabilities":["FLY"]}}}}`, want: `"FLY"`},
		"dropped capability": {container: `{"linux":{"security_context":{` + own +
			`,"capabilities":{"drop_capabilities":["CAP_X"]}}}}`, want: `"CAP_X"`},
		"host pid": {container: `{"linux":{"security_context":{"namespace_options":{"pid":"NODE"}}}}`,
			want: "host's PID namespace"},
		"pod pid": {container: `{}`, want: "share its pod's PID namespace"},
		"target pid": {
			container: `{"linux":{"security_context":{"namespace_options":{"pid":"TARGET","target_id":"x"}}}}`, want: `"x"`},
		"userns differs": {
			container: `{"linux":{"security_context":{"namespace_options":{"pid":"CONTAINER","userns_options":{"uids":[{"length":1}]}}}}}`, want: "user namespace options differ"},
		"userns unmapped": {container: `{"linux":{"security_context":{` + own + `}}}`,
			input: `{"Paths":{"UserNS":"/ns"}}`, want: "no uids are mapped"},
		"user not in userns": {pod: `{"linux":{"security_context":{"namespace_options":{` + ids + `}}}}`,
			container: `{"linux":{"security_context":{"run_as_user":{"value":10},"namespace_options":{"pid":"CONTAINER",` + ids +
				`}}}}`, input: `{"Paths":{"UserNS":"/ns"}}`, want: "user 10, group 0"},
		"group not in userns": {pod: `{"linux":{"security_context":{"namespace_options":{` + ids + `}}}}`,
			container: `{"linux":{"security_context":{"supplemental_groups":[7],"namespace_options":{"pid":"CONTAINER",` + ids +
				`}}}}`, input: `{"Paths":{"UserNS":"/ns"}}`, want: "user 0, group 7"},
		"both ways in userns": {pod: `{"linux":{"security_context":{"namespace_options":{` + ids + `}}}}`,
			container: `{"linux":{"security_context":{"namespace_options":{"pid":"CONTAINER",` + ids +
				`}}},"mounts":[{"container_path":"/a","host_path":"/x","propagation":2}]}`, input: `{"Paths":{"UserNS":"/ns"}}`,
			want: "can appear on the host"},
		"mapped, not staged": {container: `{"linux":{"security_context":{` + own +
			`}},"mounts":[{"container_path":"/a","host_path":"/x","uidMappings":[{"length":1}]}]}`, want: "was not staged"},
		"score": {container: `{"linux":{"resources":{"oom_score_adj":"1001"},"security_context":{` + own +
			`}}}`, want: "1001"},
		"swap": {
			container: `{"linux":{"resources":{"memory_limit_in_bytes":"10","memory_swap_limit_in_bytes":"5"},"security_context":{` + own + `}}}`, want: "below"},
		"memory": {container: `{"linux":{"resources":{"memory_limit_in_bytes":"-5"},"security_context":{` +
			own + `}}}`, want: "-5"},
		"cpus": {container: `{"linux":{"resources":{"cpuset_cpus":"all"},"security_context":{` + own + `}}}`,
			want: `"all"`},
		"relative directory": {container: `{"working_dir":"here","linux":{"security_context":{` + own + `}}}`,
			want: `"here"`},
		"short period": {container: `{"linux":{"resources":{"cpu_period":"999"},"security_context":{` + own + `}}}`,
			want: "cpu_period 999"},
		"long period": {container: `{"linux":{"resources":{"cpu_period":"1000001"},"security_context":{` + own +
			`}}}`, want: "cpu_period 1000001"},
		"small quota": {container: `{"linux":{"resources":{"cpu_quota":"7"},"security_context":{` + own + `}}}`,
			want: "cpu_quota 7"},
		"period": {container: `{"linux":{"resources":{"cpu_period":"-1"},"security_context":{` + own + `}}}`,
			want: "negative"},
		"unified path": {container: `{"linux":{"resources":{"unified":{"../x.y":"1"}},"security_context":{` + own +
			`}}}`, want: "../x.y"},
		"unified freeze": {container: `{"linux":{"resources":{"unified":{"cgroup.kill":"1"}},"security_context":{` +
			own + `}}}`, want: "cgroup.kill"},
		"unified on v1": {container: `{"linux":{"resources":{"unified":{"memory.high":"1"}},"security_context":{` +
			own + `}}}`, input: `{"Host":{"CgroupV2":false}}`, want: "needs cgroup v2"},
		"pids.max": {container: `{"linux":{"resources":{"unified":{"pids.max":"no"}},"security_context":{` + own +
			`}}}`, input: `{"Host":{"CgroupV2":false}}`, want: `"no"`},
		"device": {container: `{"linux":{"security_context":{` + own +
			`}},"devices":[{"host_path":"/dev/none"}]}`, want: "device /dev/none"},
		"device permissions": {container: `{"linux":{"security_context":{` + own +
			`}},"devices":[{"host_path":"/dev/fuse","permissions":"rr"}]}`, want: `"rr"`},
		"mount on root": {container: `{"linux":{"security_context":{` + own +
			`}},"mounts":[{"container_path":"/../","host_path":"/x"}]}`, want: "place of the root"},
		"mount nowhere": {container: `{"linux":{"security_context":{` + own + `}},"mounts":[{"host_path":"/x"}]}`,
			want: "no path in the container"},
		"mount option": {container: `{"linux":{"security_context":{` + own +
			`}},"mounts":[{"container_path":"/a","host_path":"/x","mount_options":["suid"]}]}`, want: `"suid"`},
		"propagation": {container: `{"linux":{"security_context":{` + own +
			`}},"mounts":[{"container_path":"/a","host_path":"/x","propagation":9}]}`, want: "propagation 9"},
		"rro without ro": {container: `{"linux":{"security_context":{` + own +
			`}},"mounts":[{"container_path":"/a","host_path":"/x","recursive_read_only":true}]}`, want: "readonly is not"},
		"rro propagates": {container: `{"linux":{"security_context":{` + own +
			`}},"mounts":[{"container_path":"/a","host_path":"/x","readonly":true,"recursive_read_only":true,"propagation":1}]}`,
			want: "private propagation"},
		"rro not staged": {container: `{"linux":{"security_context":{` + own +
			`}},"mounts":[{"container_path":"/a","host_path":"/x","readonly":true,"recursive_read_only":true}]}`,
			want: "was not staged"},
		"rlimit": {container: `{"linux":{"security_context":{` + own + `}}}`,
			input: `{"Rlimits":[{"type":"RLIMIT_CORE","hard":1,"soft":2}]}`, want: "RLIMIT_CORE"},
		"apparmor missing": {container: `{"linux":{"security_context":{` + own +
			`,"apparmor":{"profile_type":"Localhost","localhost_ref":"p"}}}}`, want: "does not enforce AppArmor"},
		"apparmor nameless": {container: `{"linux":{"security_context":{` + own +
			`,"apparmor":{"profile_type":"Localhost"}}}}`, want: "without a name"},
		"apparmor default": {container: `{"linux":{"security_context":{` + own +
			`,"apparmor":{"profile_type":"RuntimeDefault"}}}}`, input: `{"Host":{"AppArmor":true}}`,
			want: "does not have the runtime's own"},
		"apparmor old default": {container: `{"linux":{"security_context":{` + own +
			`,"apparmor_profile":"runtime/default"}}}`, input: `{"Host":{"AppArmor":true}}`,
			want: "does not have the runtime's own"},
		"apparmor old": {container: `{"linux":{"security_context":{` + own + `,"apparmor_profile":"x"}}}`,
			want: "apparmor_profile"},
		"seccomp old": {container: `{"linux":{"security_context":{` + own + `,"seccomp_profile_path":"localhost/"}}}`,
			want: "seccomp_profile_path"},
		"seccomp relative": {container: `{"linux":{"security_context":{` + own +
			`,"seccomp":{"profile_type":"Localhost","localhost_ref":"p"}}}}`, want: "absolute"},
		"seccomp unread": {container: `{"linux":{"security_context":{` + own +
			`,"seccomp":{"profile_type":"Localhost","localhost_ref":"/p"}}}}`, want: "not loaded"},
		"seccomp missing": {container: `{"linux":{"security_context":{` + own + `,"seccomp":{}}}}`,
			input: `{"Host":{"Seccomp":false}}`, want: "does not filter"},
		"kernel version": {container: `{"linux":{"security_context":{` + own +
			`,"seccomp":{"profile_type":"Localhost","localhost_ref":"/p"}}}}`,
			seccomp: `{"defaultAction":"SCMP_ACT_ALLOW"}`, input: `{"Host":{"KernelVersion":"new"}}`,
			want: "kernel version new"},
		"writable cgroup on v1": {container: `{"linux":{"security_context":{` + own + `}}}`,
			input: `{"Handler":{"CgroupWritable":true},"Delegated":true,"Host":{"CgroupV2":false}}`, want: "needs cgroup v2"},
		"writable cgroup without nsdelegate": {container: `{"linux":{"security_context":{` + own + `}}}`,
			input: `{"Handler":{"CgroupWritable":true}}`, want: "mounted without nsdelegate"},
		"writable cgroup without a filter": {container: `{"linux":{"security_context":{` + own + `}}}`,
			input: `{"Handler":{"CgroupWritable":true},"Delegated":true}`, want: "hostUsers: false"},
		"tmpfs on root": {container: `{"annotations":{"container.berth/tmpfs":"[\"/..\"]"},"linux":{"security_context":{` +
			own + `}}}`, want: "not a path"},
		"tmpfs option": {container: `{"annotations":{"container.berth/tmpfs":"[\"/a:dev\"]"},"linux":{"security_context":{` +
			own + `}}}`, want: `"dev" is not one of`},
		"tmpfs list": {container: `{"annotations":{"container.berth/tmpfs":"/a"},"linux":{"security_context":{` +
			own + `}}}`, want: "annotation container.berth/tmpfs"},
		"ulimit name": {container: `{"annotations":{"container.berth/ulimits":"[{\"type\":\"x\"}]"},"linux":{` +
			`"security_context":{` + own + `}}}`, want: "RLIMIT_NOFILE"},
		"no root": {container: `{}`, input: `{"Paths":{"Rootfs":""}}`, want: "no root file system"},
		"groups policy": {container: `{"linux":{"security_context":{"supplemental_groups_policy":7}}}`,
			want: "supplemental_groups_policy 7"},
	} {
		t.Run(name, func(t *testing.T) {
			in := sections{{"pod", c.pod}, {"container", c.container}, {"image", c.image}, {"input", c.input},
				{"seccomp", c.seccomp}}
			if got := buildCase(t, in); !strings.Contains(got.get("error"), c.want) {
				t.Errorf("got %v, want an error with %q", got, c.want)
			}
		})
	}
}

func TestCommand(t *testing.T) {
	for name, c := range map[string]struct{ container, image, want string }{
		"image":                    {`{}`, `{"Entrypoint":["e"],"Cmd":["c"]}`, "e c"},
		"command":                  {`{"command":["x"]}`, `{"Entrypoint":["e"],"Cmd":["c"]}`, "x"},
		"args":                     {`{"args":["a"]}`, `{"Entrypoint":["e"],"Cmd":["c"]}`, "e a"},
		"both":                     {`{"command":["x"],"args":["a"]}`, `{"Entrypoint":["e"],"Cmd":["c"]}`, "x a"},
		"args without entrypoint":  {`{"args":["a"]}`, `{"Cmd":["c"]}`, "a"},
		"cleared image entrypoint": {`{}`, `{"Entrypoint":[""],"Cmd":["c"]}`, "c"},
	} {
		in := testInput(t, sections{{"container", c.container}})
		in.Image.Cmd = nil
		strict(t, "image", c.image, &in.Image)
		got, err := Command(in.Container, in.Image)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// TestBuildLeavesItsInput: the same input gives the same spec twice, so nothing of it was changed.
func TestBuildLeavesItsInput(t *testing.T) {
	in := testInput(t, sections{{"container", `{"linux":{"security_context":{"namespace_options":{"pid":"CONTAINER"},
		"seccomp":{},"capabilities":{"add_capabilities":["ALL"],"drop_capabilities":["KILL"]}}}}`}})
	first, _, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(first, second) {
		t.Error("two specs of one input differ")
	}
	if strings.Contains(strings.Join(first.Process.Capabilities.Bounding, " "), "CAP_KILL") {
		t.Error("ALL without KILL still has it")
	}
}

func TestProcess(t *testing.T) {
	base := &specs.Spec{
		Process: &specs.Process{Args: []string{"a"}, Env: append(make([]string, 0, 9), "A=1"), Cwd: "/w",
			NoNewPrivileges: true,
			User:            specs.User{UID: 7}, ApparmorProfile: "p",
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}}}}
	got, err := Process(base, []string{"sh"}, true)
	if err != nil {
		t.Fatal(err)
	}
	want := *base.Process
	want.Args, want.Env, want.Terminal = []string{"sh"}, []string{"A=1", "TERM=xterm"}, true
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if base.Process.Args[0] != "a" || len(base.Process.Env) != 1 || base.Process.Terminal {
		t.Errorf("the container's own process was changed: %+v", base.Process)
	}
	if got, err := Process(base, []string{"sh"}, false); err != nil || got.Terminal || len(got.Env) != 1 {
		t.Errorf("without a tty: %+v, %v", got, err)
	}
	if _, err := Process(base, []string{"sh\x00x"}, false); err == nil {
		t.Error("a NUL byte is taken")
	}
}

func TestAnnotationPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"a.example/*", "a.example/b/c", true}, {"a.example", "a.example", true}, {"a.example", "a.example/b", false},
		{"*.example/x", "a.example/x", true}, {"*", "anything/at.all", true}, {"[", "[", false},
	} {
		if got := matches([]string{c.pattern}, c.key); got != c.want {
			t.Errorf("%q on %q: %v", c.pattern, c.key, got)
		}
	}
}

// TestAnnotationsThatReachARuntime are those that the handler's patterns name, of the pod and of the container, and
// what identifies the container. Of all others a runtime might obey any.
func TestAnnotationsThatReachARuntime(t *testing.T) {
	obeyed := map[string]string{}
	for _, k := range []string{
		"run.oci.seccomp_bpf_data", "io.crun.x", "krun.cpus", "org.criu.config", "org.criu.lsm.profile", "a.example/x",
		"org.systemd.property.X", "module.wasm.image/variant", "dev.gvisor.flag.debug", "io.katacontainers.config.x",
		"io.kubernetes.cri.sandbox-id",
	} {
		obeyed[k] = "forged"
	}
	in := testInput(t, nil)
	in.Container.Annotations, in.Pod.Annotations = obeyed, obeyed
	for k, v := range containerAnnotations(in) {
		if v == "forged" {
			t.Errorf("%s reaches the runtime", k)
		}
	}
	for _, h := range []Handler{{ContainerAnnotations: []string{"krun.*"}}, {PodAnnotations: []string{"krun.*"}}} {
		in.Handler = h
		got := containerAnnotations(in)
		if got["krun.cpus"] == "" || got["a.example/x"] != "" || got["io.kubernetes.cri.sandbox-id"] != testPodID {
			t.Errorf("with %+v: %v", h, got)
		}
	}
}
