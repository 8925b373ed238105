package bundle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
	"berth/internal/spec"
	"berth/internal/userns"
)

// TestDeclaredVolumes makes what an image declares, and leaves writable what is the root's own and not covered by a
// mount of the request, by whatever name either is called.
func TestDeclaredVolumes(t *testing.T) {
	b, _ := testBuilder(t)
	r, rc := record(t, b, &runtimeapi.ContainerConfig{})
	c, root := b.Container(r, rc), t.TempDir()
	for _, link := range [][2]string{{"real", "alias"}, {"/", "all"}, {"/proc", "kernel"}, {"../../outside", "escape"}} {
		if err := os.Symlink(link[0], filepath.Join(root, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(root+"/real/there", 0o700); err != nil {
		t.Fatal(err)
	}
	declared := map[string]struct{}{}
	for _, v := range []string{"/system/data", "data", "/proc/x", "/sys", "/dev/shm", "/", "/all", "/alias/there",
		"/alias/mounted/below", "/real/too", "/over/x"} {
		declared[v] = struct{}{}
	}
	cfg := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{
		SecurityContext: &runtimeapi.LinuxContainerSecurityContext{ReadonlyRootfs: true},
	}, Mounts: []*runtimeapi.Mount{{ContainerPath: "/real/mounted"}, {ContainerPath: "/alias/too/"},
		{ContainerPath: "/over"}}}
	if err := os.Mkdir(root+"/real/too", 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := c.declaredVolumes(t.Context(), root, cfg, declared)
	if err != nil {
		t.Fatal(err)
	}
	want := []spec.Volume{{Path: "/real/there", Source: root + "/real/there"},
		{Path: "/system/data", Source: root + "/system/data"}, {Path: "/data", Source: root + "/data"}}
	if !slices.Equal(got, want) {
		t.Errorf("writable are %v, wanted %v", got, want)
	}
	cfg.Linux.SecurityContext.ReadonlyRootfs = false
	if got, err := c.declaredVolumes(t.Context(), root, cfg, declared); err != nil || got != nil {
		t.Errorf("under a root that is writable: %v, %v", got, err)
	}
	for dir, want := range map[string]bool{"system/data": true, "data": true, "over": false, "real/mounted": false,
		"proc": false, "sys": false} {
		if _, err := os.Stat(filepath.Join(root, dir)); (err == nil) != want {
			t.Errorf("/%s: %v", dir, err)
		}
	}
	for i := range limit.DeclaredVolumes.Limit {
		declared[fmt.Sprint("/many/", i)] = struct{}{}
	}
	if _, err := c.declaredVolumes(t.Context(), root, cfg, declared); err == nil {
		t.Error("an image may declare any number of volumes")
	}
}

// TestVolumesStayFirst has what is asked before the spec is done add a mount and sort them all, as plugins do. What the
// request mounts is still mounted after the image's volumes, which a link of the image may lead to.
func TestVolumesStayFirst(t *testing.T) {
	b, _ := testBuilder(t)
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "app"},
		Linux: &runtimeapi.LinuxContainerConfig{
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{ReadonlyRootfs: true},
		},
		Mounts: []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: t.TempDir()}},
	}
	r, rc := record(t, b, cfg)
	p, c := b.Pod(r), b.Container(r, rc)
	img, release, err := b.Use(cfg)
	if err != nil {
		t.Fatal(err)
	}
	release()
	twice(t, Dirs(p).Make, Etc(p).Make, Shm(p).Make, here(c.MakeDirs), here(func() error { return c.MountRoot(img) }))
	defer twice(t, here(c.Unstage), here(func() error { return c.UnmountRoot(false) }), here(c.RemoveWritable),
		Shm(p).Remove, Etc(p).Remove, Dirs(p).Remove)
	req, err := c.Request(t.Context(), img, func(_ context.Context, sp *specs.Spec) error {
		sp.Mounts = append(sp.Mounts, specs.Mount{Destination: "/added", Type: "bind", Source: "/x"})
		slices.SortStableFunc(sp.Mounts, func(x, y specs.Mount) int {
			return strings.Count(x.Destination, "/") - strings.Count(y.Destination, "/")
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, m := range req.Spec.Mounts {
		at[m.Destination] = i + 1
	}
	if at["/var/cache"] == 0 || at["/var/cache"] > at["/data"] || at["/var/cache"] > at["/added"] {
		t.Errorf("the order is %v", req.Spec.Mounts)
	}
}

// What the node lacks or cannot do is not the fault of who asked for a container.
func TestFaultOfTheNode(t *testing.T) {
	source, loop := t.TempDir(), filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	_, missing := rootfs.Source(filepath.Join(source, "no/such"))
	_, endless := os.Open(loop)
	for name, c := range map[string]struct {
		err  error
		want func(error) bool
	}{
		"no room for a mount point": {
			rootfs.Stage(t.Context(), source, filepath.Join(fullDisk(t), "target"), rootfs.Staging{}),
			diskspace.Lacking},
		"a source that is not there": {missing, errdefs.IsInvalidArgument},
		"links that go round":        {endless, errdefs.IsInvalidArgument},
		"a broken disk":              {&os.PathError{Op: "open", Path: "/etc/passwd", Err: unix.EIO}, errdefs.IsInternal},
		"a disk that is read-only":   {&os.PathError{Op: "mkdir", Path: "/a", Err: unix.EROFS}, errdefs.IsInternal},
		"no descriptors":             {&os.PathError{Op: "open", Path: "/a", Err: unix.EMFILE}, errdefs.IsUnavailable},
		"a kind of its own":          {fail.New(errdefs.ErrNotFound, "no such image"), errdefs.IsNotFound},
		"a caller that has gone":     {context.Canceled, errdefs.IsCanceled},
		"nothing of the kernel's":    {errors.New("no"), errdefs.IsInvalidArgument},
	} {
		if c.err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		got := sandbox.Invalid(c.err)
		if !c.want(got) || got.Error() != c.err.Error() || diskspace.Lacking(got) && errdefs.IsInvalidArgument(got) {
			t.Errorf("%s: %v (%T)", name, got, got)
		}
	}
}

// fullDisk is a directory in which nothing more can be made.
func fullDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A node that makes no more user namespaces is as little the request's fault, and has no full disk.
func TestNoMoreUserNamespaces(t *testing.T) {
	one := []userns.Range{{Host: 1 << 30, Size: 1}}
	err := withUserns("/no/such/program", userns.Mapping{UIDs: one, GIDs: one}, func(string) error { return nil })
	if got := sandbox.Invalid(err); !errdefs.IsUnavailable(got) || errdefs.IsInvalidArgument(got) {
		t.Errorf("%v", got)
	}
}
