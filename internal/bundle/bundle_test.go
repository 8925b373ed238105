package bundle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/cgroup/limits"
	"berth/internal/fail"
	"berth/internal/look"
	"berth/internal/monitor/wire"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// testImages are images by name.
type testImages struct {
	images map[string]Image
	held   int
}

func (s *testImages) Use(asked *runtimeapi.ImageSpec) (Image, func(), error) {
	img, ok := s.images[asked.GetImage()]
	if !ok {
		return Image{}, nil, fail.New(errdefs.ErrNotFound, "no such image")
	}
	s.held++
	return img, func() { s.held-- }, nil
}

// layer makes an image's layer of files by their paths.
func layer(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// testBuilder is a node with one handler, and images "app" and "data".
func testBuilder(t *testing.T) (*Builder, *testImages) {
	t.Helper()
	images := &testImages{images: map[string]Image{
		"app": {
			ID: "sha256:app", Layers: []string{"a"},
			Dirs: []string{layer(t, map[string]string{
				"etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:1000:1000::/srv:/bin/sh\n", "etc/group": "root:x:0:\nweb:x:1000:\n",
			})},
			Config: imagespec.ImageConfig{
				User: "web", Cmd: []string{"/bin/server"}, WorkingDir: "/srv/work", Volumes: map[string]struct{}{"/var/cache": {}},
			},
		},
		"data": {ID: "sha256:data", Layers: []string{"b", "a"}, Dirs: []string{layer(t, map[string]string{"sub/file": "x"})}},
	}}
	dir := t.TempDir()
	find := func(name string) (runtime.Handler, error) {
		if name != "" && name != "runc" {
			return runtime.Handler{}, errdefs.ErrNotFound
		}
		return runtime.Handler{Name: "runc", Path: "/bin/true"}, nil
	}
	return &Builder{
		Layout: sandbox.Layout{
			Root: filepath.Join(dir, "r"), State: filepath.Join(dir, "s"), Instance: "berth-test",
			NetNS: filepath.Join(dir, "netns"),
		},
		Host: spec.Host{KernelVersion: "6.12.1", Arch: "amd64", CgroupV2: true}, Init: "/bin/true", Images: images,
		Handlers: Handlers{Find: find, Spec: func(name string) (runtime.Handler, spec.Handler, error) {
			h, err := find(name)
			return h, spec.Handler{Storage: spec.Storage{Size: 1 << 30}, Log: spec.Log{Rate: 4096}}, err
		}},
		Cgroups: limits.Direct{Direct: cgroup.Direct{Instance: "berth-test"}}, Log: slog.New(slog.DiscardHandler),
		Volumes: &look.Disks{},
	}, images
}

// record is a pod with one container.
func record(t *testing.T, b *Builder, cfg *runtimeapi.ContainerConfig) (*sandbox.Record, *sandbox.Container) {
	t.Helper()
	pod, err := sandbox.NewPodConfig(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u"},
		Hostname: "web-0", DnsConfig: &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/pod1",
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &sandbox.Record{ID: sandbox.NewID(), State: sandbox.Creating, Config: pod, Runtime: "runc"}
	ctr, err := sandbox.NewContainerConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &sandbox.Container{ID: sandbox.NewID(), State: sandbox.Creating, Config: ctr}
	c.Cgroup = b.Cgroup(r, c.ID)
	r.Containers = append(r.Containers, c)
	return r, c
}

// twice runs each of the steps two times: all may be repeated.
func twice(t *testing.T, steps ...func(context.Context) error) {
	t.Helper()
	for i, do := range steps {
		for range 2 {
			if err := do(t.Context()); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
	}
}

func here(do func() error) func(context.Context) error {
	return func(context.Context) error { return do() }
}

// TestBundleOfARecord makes a pod and a container of a record, without whoever keeps records, asks what the runtime is
// asked for, and unmakes all of it.
func TestBundleOfARecord(t *testing.T) {
	b, images := testBuilder(t)
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "app"}, Tty: true,
		Mounts: []*runtimeapi.Mount{{
			ContainerPath: "/data", Image: &runtimeapi.ImageSpec{Image: "data"}, ImageSubPath: "sub", Readonly: true,
		}},
	}
	r, rc := record(t, b, cfg)
	p, c := b.Pod(r), b.Container(r, rc)
	img, release, err := b.Use(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if all := img.AllLayers(); !slices.Equal(all, []string{"a", "b"}) || images.held != 2 {
		t.Errorf("layers %v, %d images held", all, images.held)
	}
	release()
	twice(t, Dirs(p).Make, Etc(p).Make, Shm(p).Make, here(c.MakeDirs),
		here(func() error { return c.MountRoot(img) }), here(func() error { return c.MountVolumes(img) }))
	req, err := c.Request(t.Context(), img, func(_ context.Context, sp *specs.Spec) error {
		sp.Process.Env = append(sp.Process.Env, "BY=plugin")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	at, sp := b.Layout, req.Spec
	sources := map[string]string{}
	for _, m := range sp.Mounts {
		sources[m.Destination] = m.Source
	}
	for what, got := range map[string][2]string{
		"container":  {req.Container, string(rc.ID)},
		"handler":    {req.Handler.Path, "/bin/true"},
		"terminal":   {fmt.Sprint(req.Terminal), "true"},
		"user":       {fmt.Sprint(req.User.UID, sp.Process.User.GID), "1000 1000"},
		"root":       {sp.Root.Path, at.Rootfs(r.ID, rc.ID)},
		"directory":  {sp.Process.Cwd, "/srv/work"},
		"arguments":  {strings.Join(sp.Process.Args, " "), "/bin/server"},
		"plugin":     {fmt.Sprint(slices.Contains(sp.Process.Env, "BY=plugin")), "true"},
		"cgroup":     {sp.Linux.CgroupsPath, "/kubepods/pod1/" + string(rc.ID)},
		"volume":     {sources["/data"], filepath.Join(at.ImageVolume(r.ID, rc.ID, 0), "mount", "sub")},
		"/dev/shm":   {sources["/dev/shm"], at.Shm(r.ID)},
		"/etc/hosts": {sources["/etc/hosts"], filepath.Join(sandbox.EtcMount(&at, r.ID), "hosts")},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %q, want %q", what, got[0], got[1])
		}
	}
	for path, want := range map[string]string{
		sources["/etc/hostname"]: "web-0\n", sources["/etc/resolv.conf"]: "nameserver 10.0.0.10\n",
		sources["/data"] + "/file": "x",
	} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	for _, dir := range []string{"srv/work", "var/cache"} {
		if info, err := os.Stat(filepath.Join(sp.Root.Path, dir)); err != nil || !info.IsDir() {
			t.Errorf("%s is not made in the root: %v", dir, err)
		}
	}
	twice(t, here(c.Unstage), here(c.UnmountVolumes), here(func() error { return c.UnmountRoot(false) }),
		here(c.RemoveWritable), Shm(p).Remove, Etc(p).Remove, Dirs(p).Remove)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), at.State) {
		t.Errorf("mounts are left: %v", err)
	}
	for _, path := range []string{at.Run(r.ID), at.Writable(r.ID, rc.ID)} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// TestExitFileIsKept unmounts a root whose exit no record has yet.
func TestExitFileIsKept(t *testing.T) {
	b, _ := testBuilder(t)
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "app"},
	}
	r, rc := record(t, b, cfg)
	c := b.Container(r, rc)
	twice(t, Dirs(b.Pod(r)).Make, here(c.MakeDirs))
	exit := b.Layout.RunExit(r.ID, rc.ID)
	for _, path := range []string{exit, exit + ".other"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int {
		entries, err := os.ReadDir(b.Layout.RunContainer(r.ID, rc.ID))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return len(entries)
	}
	twice(t, here(func() error { return c.UnmountRoot(true) }))
	if _, err := os.Stat(exit); err != nil || left() != 1 {
		t.Errorf("%d files are left: %v", left(), err)
	}
	twice(t, here(func() error { return c.UnmountRoot(false) }))
	if left() != 0 {
		t.Errorf("%d files are left in the end", left())
	}
}

// TestOwedGoesWithTheContainer unmounts the root of a container whose log is owed something, and removes it.
func TestOwedGoesWithTheContainer(t *testing.T) {
	b, _ := testBuilder(t)
	r, rc := record(t, b, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "app"},
	})
	c := b.Container(r, rc)
	twice(t, Dirs(b.Pod(r)).Make, here(c.MakeDirs))
	owed := filepath.Join(b.Layout.Run(r.ID), wire.Owed, string(rc.ID))
	if err := os.MkdirAll(filepath.Join(owed, "journal"), 0o700); err != nil {
		t.Fatal(err)
	}
	twice(t, here(func() error { return c.UnmountRoot(false) }))
	if _, err := os.Stat(owed); err != nil {
		t.Errorf("what is owed went with the root: %v", err)
	}
	twice(t, here(c.RemoveWritable))
	if _, err := os.Stat(owed); !os.IsNotExist(err) {
		t.Errorf("what is owed outlives the container: %v", err)
	}
}

// mounted is a container of the image app whose root is mounted until end is called.
func mounted(t *testing.T, b *Builder) (c Container, img Images, end func()) {
	t.Helper()
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "app"},
	}
	r, rc := record(t, b, cfg)
	c = b.Container(r, rc)
	img, release, err := b.Use(cfg)
	if err != nil {
		t.Fatal(err)
	}
	twice(t, Dirs(b.Pod(r)).Make, Etc(b.Pod(r)).Make, here(c.MakeDirs), here(func() error { return c.MountRoot(img) }))
	return c, img, func() {
		twice(t, here(func() error { return c.UnmountRoot(false) }), Etc(b.Pod(r)).Remove)
		release()
	}
}

// TestRefusedByWhoAdjusts has the one who may change a spec refuse it: its error is the answer as it is, and nothing is
// asked of a runtime.
func TestRefusedByWhoAdjusts(t *testing.T) {
	b, _ := testBuilder(t)
	c, img, end := mounted(t, b)
	defer end()
	no := fail.New(errdefs.ErrFailedPrecondition, "no")
	req, err := c.Request(t.Context(), img, func(context.Context, *specs.Spec) error { return no })
	if err != no || req.Spec != nil {
		t.Errorf("%v, %+v", err, req.Create)
	}
}

// profiles stands for the AppArmor of a node.
type profiles struct {
	name   string
	ensure error
}

func (p *profiles) Default() string                      { return p.name }
func (p *profiles) Ensure(context.Context, string) error { return p.ensure }

// TestProfileIsLookedForEachTime wants a container confined as soon as the node can confine it, whatever was the case
// when the daemon started, and refused where the node should be able to and is not.
func TestProfileIsLookedForEachTime(t *testing.T) {
	b, _ := testBuilder(t)
	node := &profiles{}
	b.Host.AppArmor, b.AppArmor = true, node
	c, img, end := mounted(t, b)
	defer end()
	for _, now := range []struct {
		profiles
		want string
	}{
		{profiles{}, ""},
		{profiles{"berth-default", errors.New("syntax error")}, "syntax error"},
		{profiles{"berth-default", nil}, "berth-default"},
	} {
		*node = now.profiles
		req, err := c.Request(t.Context(), img, nil)
		switch {
		case now.ensure != nil:
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), now.want) {
				t.Errorf("a profile that cannot be loaded: %v", err)
			}
		case err != nil || req.Spec.Process.ApparmorProfile != now.want:
			t.Errorf("want the profile %q: %v", now.want, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	node.ensure = ctx.Err()
	if err := b.confine(ctx, &specs.Spec{Process: &specs.Process{ApparmorProfile: "x"}}); !errdefs.IsCanceled(err) {
		t.Errorf("a caller that has gone: %v", err)
	}
}
