package pod

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/rootfs"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
	"berth/test/volume"
)

// onQuota is a bench on an ext4 with project quota. Where the kernel has none the test is skipped: it runs in the
// virtual machine (make test-vm).
func onQuota(t *testing.T) *bench {
	t.Helper()
	if err := volume.Ext4.Available(); err != nil {
		t.Skip(err)
	}
	v, err := volume.Make(t.TempDir(), volume.Ext4, 64, "-O", "quota,project", "-E", "quotatype=prjquota")
	if err != nil {
		t.Fatal(err)
	}
	disk := t.TempDir()
	if err := v.Mount(disk, "prjquota"); err != nil {
		t.Skipf("this kernel has no project quota for ext4: %v", err)
	}
	t.Cleanup(func() {
		if err := v.Unmount(); err != nil {
			t.Error(err)
		}
	})
	b := open(t)
	b.cfg.Root = filepath.Join(disk, "root")
	b.reopen(t)
	if !b.Pods.cfg.Bundle.Projects {
		t.Fatal("the file system counts no projects")
	}
	return b
}

// layered makes a pod with a container whose record has this limit, and whose layer has a project without one.
func layered(t *testing.T, b *bench, limit *sandbox.Storage) (pod, ctr sandbox.ID, dir string) {
	t.Helper()
	pod, ctr = started(t, b)
	err := b.Catalog.index.Load().pods[pod].update(t.Context(), "test", func(r *sandbox.Record) error {
		return r.Edit(ctr, func(c *sandbox.Container) error { c.Storage = limit; return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	dir = b.cfg.Writable(pod, ctr)
	if q, err := rootfs.QuotaOf(dir); !q.Unlimited() || err != nil {
		t.Fatalf("the layer has the quota %+v, %v", q, err)
	}
	b.drv.inv.Containers = map[string]runtime.Found{string(ctr): {State: runtime.Running}}
	return pod, ctr, dir
}

// TestQuotaOfAnOlderRelease adopts a container that was made without a limit by a release that knew none.
func TestQuotaOfAnOlderRelease(t *testing.T) {
	b := onQuota(t)
	_, _, dir := layered(t, b, nil)
	b.limit(spec.Storage{Size: 8 << 20, Inodes: 500})
	b.reopen(t)
	want := rootfs.Quota{Bytes: 8 << 20, Inodes: 500}
	wait(t, "it is limited", func() bool {
		q, err := rootfs.QuotaOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		return q == want
	})
}

// TestQuotaThatWasLost adopts a container whose limit is gone from the file system, as after quotas were switched on
// anew.
func TestQuotaThatWasLost(t *testing.T) {
	b := onQuota(t)
	_, ctr, dir := layered(t, b, &sandbox.Storage{Bytes: 2 << 20})
	b.reopen(t)
	wait(t, "it is limited", func() bool {
		q, err := rootfs.QuotaOf(dir)
		return err == nil && q == rootfs.Quota{Bytes: 2 << 20}
	})
	r, c, err := b.Catalog.GetContainer(ctr)
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := b.Meter.StorageOf(r, c); !ok || !u.Kept {
		t.Errorf("%+v", u)
	}
}

// TestQuotaThatWasLeft has a container without a filter take a file out of its project: it is told, and the file counts
// to what the container uses.
func TestQuotaThatWasLeft(t *testing.T) {
	b := onQuota(t)
	pod, ctr, dir := layered(t, b, &sandbox.Storage{})
	file := dir + "/upper/big"
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Meter.Strays.Look(t.Context())
	if n := len(b.Problems()); n != 0 {
		t.Fatalf("%d problems", n)
	}
	sync := func() {
		t.Helper()
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(unix.Syncfs(int(f.Fd())), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	sync()
	r, c, err := b.Catalog.GetContainer(ctr)
	if err != nil {
		t.Fatal(err)
	}
	before := b.Meter.Writable(r, c)
	leave(t, file)
	sync()
	b.Meter.Strays.Look(t.Context())
	p := b.Problems()
	if len(p) != 1 || p[0].Pod != pod || !strings.Contains(p[0].What, "container "+string(ctr)+" has left") {
		t.Errorf("%+v", p)
	}
	if after := b.Meter.Writable(r, c); after.Bytes+8192 < before.Bytes {
		t.Errorf("%d bytes used, and %d once it had left", before.Bytes, after.Bytes)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	b.Meter.Strays.Look(t.Context())
	if p := b.Problems(); len(p) != 0 {
		t.Errorf("after the file is gone: %+v", p)
	}
}

// leave gives a file to another project, as its owner may by FS_IOC_FSSETXATTR.
func leave(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const set = 0x401c5820
	attributes := [7]uint32{3: 77} // struct fsxattr
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), set, uintptr(unsafe.Pointer(&attributes))); errno != 0 {
		t.Fatal(errno)
	}
}
