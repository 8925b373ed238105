package selinux

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The labels of files can be set, and read, also where the kernel has no SELinux. That a real one obeys them is seen in
// test/e2e, in a virtual machine.

const mine = "system_u:object_r:container_file_t:s0:c1,c2"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func labelOf(t *testing.T, path string) string {
	t.Helper()
	var buf [200]byte
	n, err := unix.Lgetxattr(path, attribute, buf[:])
	if errors.Is(err, unix.ENODATA) {
		return ""
	}
	must(t, err)
	return strings.TrimRight(string(buf[:n]), "\x00")
}

func knows(known ...string) func(string) error {
	return func(l string) error {
		for _, k := range known {
			if strings.HasPrefix(l, k) {
				return nil
			}
		}
		return unix.EINVAL
	}
}

func testNode(t *testing.T, keep ...string) *Node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	n, err := open("u:r:app_t:s0:c5,c6", "u:object_r:app_file_t:s0:c5,c6", keep, knows("u:"))
	must(t, err)
	return n
}

func TestLabelsOfThePolicy(t *testing.T) {
	for _, c := range []struct {
		process, file         string
		known                 string
		wantProcess, wantFile string
	}{
		{"u:r:app_t:s0:c5,c6", "u:object_r:app_file_t:s0:c5,c6", "u:", "u:r:app_t:s0", "u:object_r:app_file_t:s0"},
		{"u:r:app_t", "u:object_r:app_file_t", "u:", "u:r:app_t", "u:object_r:app_file_t"}, // a policy without levels
		{"", "", "system_u:", usualProcess, usualFile},                                     // one that does not say
		{"", "", "u:", "", ""},
	} {
		n, err := open(c.process, c.file, nil, knows(c.known))
		if c.wantProcess == "" {
			if err == nil || !strings.Contains(err.Error(), "container_t") {
				t.Errorf("a policy without containers: %v", err)
			}
			continue
		}
		must(t, err)
		if p, f := n.Usual(); p != c.wantProcess || f != c.wantFile {
			t.Errorf("%s, %s: got %s, %s", c.process, c.file, p, f)
		}
		if err := n.Check("other:r:t:s0"); err == nil || !strings.Contains(err.Error(), "other:r:t:s0") {
			t.Errorf("a label that is not allowed: %v", err)
		}
	}
}

func TestRelabel(t *testing.T) {
	n := testNode(t)
	dir := t.TempDir()
	vol := filepath.Join(dir, "vol")
	must(t, os.MkdirAll(vol+"/a/b", 0o755))
	must(t, os.WriteFile(dir+"/outside", nil, 0o644))
	must(t, os.WriteFile(vol+"/a/file", nil, 0o000))
	must(t, os.Symlink("../outside", vol+"/link"))
	must(t, unix.Mkfifo(vol+"/a/fifo", 0o600))
	must(t, unix.Mknod(vol+"/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	must(t, os.Mkdir(vol+"/mounted", 0o755))
	must(t, unix.Mount("t", vol+"/mounted", "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(vol+"/mounted", 0)) })
	must(t, os.WriteFile(vol+"/mounted/file", nil, 0o644))
	must(t, n.Relabel(t.Context(), vol, mine))
	for _, f := range []string{"", "/a", "/a/b", "/a/file", "/a/fifo", "/link", "/null", "/mounted", "/mounted/file"} {
		if got := labelOf(t, vol+f); got != mine {
			t.Errorf("%s has the label %q", f, got)
		}
	}
	for _, f := range []string{dir, dir + "/outside"} {
		if got := labelOf(t, f); got == mine {
			t.Errorf("%s is not of the volume, and was relabelled", f)
		}
	}
	// Of what has the label nothing is changed, not even the time at which it was; what has another gets it.
	must(t, unix.Lsetxattr(vol+"/a/b", attribute, []byte("x:y:z"), 0))
	was := ctime(t, vol+"/a/file")
	must(t, n.Relabel(t.Context(), vol+"/", mine))
	if ctime(t, vol+"/a/file") != was || labelOf(t, vol+"/a/b") != mine {
		t.Error("a second relabelling changed what was right, or left what was not")
	}
	must(t, n.Relabel(t.Context(), vol+"/a/file", "x:y:z"))
	if labelOf(t, vol+"/a/file") != "x:y:z" || labelOf(t, vol+"/a") != mine {
		t.Error("a volume that is a file is not alone relabelled")
	}
}

func ctime(t *testing.T, path string) unix.Timespec {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Ctim
}

// A volume's top is labelled last: where that is missing, the rest may be.
func TestRelabelEndsWithItsCaller(t *testing.T) {
	n := testNode(t)
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/a", 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Relabel(ctx, dir, mine); !errors.Is(err, context.Canceled) || labelOf(t, dir) == mine {
		t.Errorf("%v; the top has %q", err, labelOf(t, dir))
	}
}

func TestRelabelOfWhatHasNoLabels(t *testing.T) {
	n := testNode(t)
	dir := t.TempDir()
	must(t, unix.Mount("r", dir, "ramfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	must(t, os.Mkdir(dir+"/a", 0o755))
	must(t, n.Relabel(t.Context(), dir, mine))
	must(t, n.Label(dir+"/a", mine))
	if err := n.Relabel(t.Context(), dir+"/none", mine); !errors.Is(err, unix.ENOENT) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestRelabelTooDeep(t *testing.T) {
	n := testNode(t)
	top := t.TempDir()
	dir, err := os.Open(top)
	must(t, err)
	for range maxDepth + 5 {
		must(t, unix.Mkdirat(int(dir.Fd()), "d", 0o755))
		fd, err := unix.Openat(int(dir.Fd()), "d", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, dir.Close())
		dir = os.NewFile(uintptr(fd), "d")
	}
	must(t, dir.Close())
	if err := n.Relabel(t.Context(), top, mine); err == nil || !strings.Contains(err.Error(), "1000 deep") {
		t.Errorf("%v", err)
	}
}

func TestProtected(t *testing.T) {
	n := testNode(t, "/var/lib/berth", "/srv/a/images")
	for _, path := range []string{
		"/", "/usr", "/usr/", "/usr/share/doc", "/etc", "/var", "/var/lib", "/proc/1", "/sys/fs", "/dev/shm", "/home/me",
		"/root", "/tmp", "/run",
		"/var/lib/kubelet", "/var/lib/kubelet/../kubelet/pods", "/var/lib/berth", "/var/lib/berth/pods/x", "/srv", "/srv/a",
		"/srv/a/images",
	} {
		var no *ProtectedError
		if err := n.Relabel(t.Context(), path, mine); !errors.As(err, &no) {
			t.Fatalf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/var/lib/kubelet/pods/uid/volumes/x", "/srv/ab", "/home/me/data", "/usrlocal",
		"/data"} {
		if n.protected(path) {
			t.Errorf("%s is protected", path)
		}
	}
}
