package spec

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var update = flag.Bool("update", false, "write the goldens anew")

// A golden is one file of sections that begin with `-- name --`. The first ones are the input, of which each may be
// left out: container and pod (CRI as JSON), image, input (fields of Input over those of testInput), passwd and group,
// seccomp. The text before the first section says what the case shows. The last are the output: spec, warnings, error.
func TestBuildGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/build/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			compareGolden(t, file, []string{"spec", "warnings", "error"}, func(in sections) sections { return buildCase(t, in) })
		})
	}
}

func TestInitGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/init/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			compareGolden(t, file, []string{"spec", "error"}, func(in sections) sections {
				full := testInput(t, in)
				got, err := BuildInit(
					InitInput{Pod: full.Pod, PodID: full.PodID, Host: full.Host, Handler: full.Handler, SELinux: full.SELinux,
						Paths: full.Paths, Binary: "/usr/libexec/berth-monitor", AppArmorDefault: full.AppArmorDefault})
				return output(t, got, nil, err)
			})
		})
	}
}

type section struct{ name, text string }
type sections []section

func (s sections) get(name string) string {
	for _, x := range s {
		if x.name == name {
			return x.text
		}
	}
	return ""
}

// compareGolden makes the output of a file's input and compares it with, or writes it over, the file's output.
func compareGolden(t *testing.T, file string, outputs []string, run func(sections) sections) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	comment, all := split(string(data))
	var in sections
	for _, s := range all {
		if !slices.Contains(outputs, s.name) {
			in = append(in, s)
		}
	}
	text := join(comment, append(in, run(in)...))
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != string(data) {
		t.Errorf("%s is not what Build gives now (go test -update writes it anew; look at the difference):\n%s", file, text)
	}
}

func split(data string) (comment string, out sections) {
	for line := range strings.Lines(data) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "-- ")
		if name, end := strings.CutSuffix(name, " --"); ok && end {
			out = append(out, section{name: name})
		} else if len(out) == 0 {
			comment += line
		} else {
			out[len(out)-1].text += line
		}
	}
	return comment, out
}

func join(comment string, all sections) string {
	text := comment
	for _, s := range all {
		text += "-- " + s.name + " --\n" + s.text
	}
	return text
}

func buildCase(t *testing.T, in sections) sections {
	full := testInput(t, in)
	want, err := RequestedUser(full.Container, full.Image)
	if err != nil {
		return output(t, nil, nil, err)
	}
	if full.User, err = ResolveUser([]byte(in.get("passwd")), []byte(in.get("group")), want); err != nil {
		return output(t, nil, nil, err)
	}
	if path, err := SeccompPath(full.Container.GetLinux().GetSecurityContext()); err != nil {
		return output(t, nil, nil, err)
	} else if path != "" && in.get("seccomp") != "" {
		if full.Seccomp, err = ParseSeccomp([]byte(in.get("seccomp"))); err != nil {
			return output(t, nil, nil, err)
		}
	}
	got, warnings, err := Build(t.Context(), full)
	return output(t, got, warnings, err)
}

func output(t *testing.T, s *specs.Spec, warnings []string, err error) sections {
	if err != nil {
		return sections{{"error", err.Error() + "\n"}}
	}
	out := sections{{"spec", render(t, s)}}
	if len(warnings) > 0 {
		out = append(out, section{"warnings", strings.Join(warnings, "\n") + "\n"})
	}
	return out
}

func render(t *testing.T, s *specs.Spec) string {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

const testPodID = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// testInput is a plain pod on a plain host, with what the case says over it. A mount of the request is resolved to
// /real<host path>, and staged below /staged; devices under /dev/snd, /dev/fuse and /dev/owned
// exist.
func testInput(t *testing.T, in sections) Input {
	full := Input{
		PodID: testPodID, ContainerID: strings.Repeat("c", 64),
		Pod:       &runtimeapi.PodSandboxConfig{},
		Container: &runtimeapi.ContainerConfig{},
		Image:     imagespec.ImageConfig{Cmd: []string{"/bin/server"}},
		Host: Host{
			KernelVersion: "6.12.1", Arch: "amd64", CgroupV2: true, SwapAccounting: true,
			Seccomp: true, DefaultSeccomp: testSeccomp,
			BoundingCaps: slices.Clone(knownCaps), HasResource: true,
			HugepageSizes: []string{"2MB"},
		},
		Paths: Paths{
			Rootfs: "/run/berth/pods/p/c/c/rootfs", Hostname: "/run/berth/pods/p/hostname", Hosts: "/run/berth/pods/p/hosts",
			ResolvConf: "/run/berth/pods/p/resolv.conf", Shm: "/run/berth/pods/p/shm", NetNS: "/run/netns/berth-p",
			IPCNS: "/run/berth/pods/p/ns/ipc", UTSNS: "/run/berth/pods/p/ns/uts", CgroupsPath: "/kubepods/pod1/c",
		},
		StatDevice: statTestDevice,
	}
	proto := protojson.UnmarshalOptions{}
	if text := in.get("pod"); text != "" {
		if err := proto.Unmarshal([]byte(text), full.Pod); err != nil {
			t.Fatalf("pod: %v", err)
		}
	}
	full.Hostname = cmp.Or(full.Pod.GetHostname(), "node1")
	if text := in.get("container"); text != "" {
		if err := proto.Unmarshal([]byte(text), full.Container); err != nil {
			t.Fatalf("container: %v", err)
		}
	}
	strict(t, "image", in.get("image"), &full.Image)
	over := overlay{&full.Host, &full.Handler, &full.Paths, &full.Rlimits, &full.SELinux, &full.Delegated,
		&full.AppArmorDefault}
	strict(t, "input", in.get("input"), &over)
	for _, m := range full.Container.GetMounts() {
		src := "/real" + m.GetHostPath()
		full.Mounts = append(full.Mounts,
			ResolvedMount{Mount: m, Source: src, Staged: strings.HasPrefix(m.GetHostPath(), "/staged")})
	}
	return full
}

// testSeccomp stands for the default filter: it tells which capabilities it is for.
func testSeccomp(caps []string) *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno,
		Syscalls: []specs.LinuxSyscall{{Names: caps, Action: specs.ActAllow}}}
}

// overlay is what the input section may set.
type overlay struct {
	Host    *Host
	Handler *Handler
	Paths   *Paths
	Rlimits *[]specs.POSIXRlimit
	SELinux *Labels

	Delegated       *bool
	AppArmorDefault *string
}

func strict(t *testing.T, what, text string, v any) {
	if text == "" {
		return
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func statTestDevice(_ context.Context, p string) ([]specs.LinuxDevice, error) {
	switch p {
	case "/dev":
		return []specs.LinuxDevice{{Path: "/dev/kvm", Type: "c", Major: 10, Minor: 232},
			{Path: "/dev/pts/0", Type: "c", Major: 136}}, nil
	case "/dev/fuse":
		return []specs.LinuxDevice{{Path: p, Type: "c", Major: 10, Minor: 229}}, nil
	case "/dev/owned":
		mode, uid, gid := os.FileMode(0o600), uint32(5), uint32(6)
		return []specs.LinuxDevice{{Path: p, Type: "b", Major: 7, FileMode: &mode, UID: &uid, GID: &gid}}, nil
	case "/dev/snd":
		return []specs.LinuxDevice{{Path: p + "/seq", Type: "c", Major: 116, Minor: 1},
			{Path: p + "/by/timer", Type: "c", Major: 116, Minor: 33}}, nil
	}
	return nil, fmt.Errorf("%s: no such device", p)
}
