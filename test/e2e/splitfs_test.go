package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// fileSystems asks for the image store's and the writable layers'.
func (r rig) fileSystems() (images, containers *v1.FilesystemUsage) {
	r.Helper()
	info, err := r.n.Images.ImageFsInfo(ctx())
	r.ok(err)
	if len(info.ImageFilesystems) != 1 || len(info.ContainerFilesystems) != 1 {
		r.Fatalf("info %v", info)
	}
	return info.ImageFilesystems[0], info.ContainerFilesystems[0]
}

// TestOneFileSystem has images and containers on one: a kubelet must not take them for two.
func TestOneFileSystem(t *testing.T) {
	each(t, func(r rig) {
		images, containers := r.fileSystems()
		if !proto.Equal(images, containers) {
			r.Errorf("two answers for one file system: %v, %v", images, containers)
		}
		if later, _ := r.fileSystems(); later.Timestamp <= images.Timestamp {
			r.Errorf("timestamps %d, then %d: a kubelet does not act upon the second", images.Timestamp, later.Timestamp)
		}
	})
}

// split makes a node whose images are on a file system of their own, one that is mounted as strictly as can be.
func split(t *testing.T, options string) (r rig, dir string) {
	t.Helper()
	dir = t.TempDir()
	r = ownNode(t, node.Options{Runtime: runtimes()[0], Tables: fmt.Sprintf("[images]\nroot = %q\n", dir)})
	r.ok(r.n.Stop())
	r.ok(r.n.Space.Run(exec.Command("mount", "-t", "tmpfs", "-o", options, "tmpfs", dir)))
	t.Cleanup(func() {
		r.ok(r.n.Stop())
		// The kernel may still be taking apart the mounts of containers that have gone.
		r.eventually("nothing is mounted from it", func() bool { return r.n.Space.Run(exec.Command("umount", dir)) == nil })
		r.ok(r.n.Start())
	})
	r.ok(r.n.Start())
	return r, dir
}

// used is what a file system in the node's space has used, in bytes.
func (r rig) used(path string) (bytes uint64) {
	r.Helper()
	r.ok(r.n.Space.Do(func() error {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		bytes = (st.Blocks - st.Bfree) * uint64(st.Bsize)
		return err
	}))
	return bytes
}

func TestSplitFileSystems(t *testing.T) {
	r, dir := split(t, "noexec,nosuid,nodev,size=256m")
	fresh := r.used(dir)
	image := r.pull("busybox:latest")
	full := r.used(dir)
	p := r.pod()
	c := p.start(busybox("main", "dd if=/dev/zero of=/written bs=1M count=8; rm /bin/wget; echo done; sleep 1000"))
	c.logged("done")
	r.ok(r.n.Restart()) // the next reading of the writable layers is at once then
	r.eventually("the usage of the writable layer is known", func() bool {
		images, containers := r.fileSystems()
		if images.FsId.Mountpoint != dir || containers.FsId.Mountpoint != r.n.Root+"/pods" {
			r.Fatalf("mount points %v, %v", images.FsId, containers.FsId)
		}
		return containers.UsedBytes.Value >= 8<<20
	})
	images, _ := r.fileSystems()
	if counted, real := images.UsedBytes.Value, full-fresh; counted < real/2 || counted > real*2 {
		r.Errorf("counted %d bytes of images, %d are used", counted, real)
	}
	if after := r.used(dir); after > full+1<<20 {
		r.Errorf("a container wrote to the images' file system: %d bytes, then %d", full, after)
	}
	r.wantText("the root after a restart", c.exec("sh", "-c", "stat -c %s /written; test -e /bin/wget || echo gone; ls "+
		"/webapp"), "8388608\ngone\n/webapp")
	r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
	r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
	r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: image}))
	r.eventually("the image's file system is empty again", func() bool { return r.used(dir) <= fresh+64<<10 })
	if images, _ := r.fileSystems(); images.UsedBytes.Value != 0 || images.InodesUsed.Value != 0 {
		r.Errorf("nothing is there, and counted are %v", images)
	}
	r.pull("busybox:latest")
	r.wantText("the next container", p.output(busybox("again", "id -u")), "0")
}

// TestMovedImages moves the store between two starts: what runs goes on, and what was in the old place stays there.
func TestMovedImages(t *testing.T) {
	r, dir := split(t, "size=256m")
	r.pull("busybox:latest")
	c := r.pod().start(busybox("main", "sleep 1000"))
	before := r.used(dir)
	r.ok(r.n.Stop())
	moved := t.TempDir()
	r.ok(os.MkdirAll(r.n.Dir+"/conf.d", 0o755))
	r.ok(os.WriteFile(r.n.Dir+"/conf.d/10-images.toml", fmt.Appendf(nil, "[images]\nroot = %q\n", moved), 0o644))
	r.ok(r.n.Start())
	r.wantText("what runs", c.exec("ls", "/webapp"), "/webapp")
	if got := r.image(ref("busybox:latest")); got != nil {
		r.Errorf("the new store has %v", got)
	}
	r.pull("busybox:latest")
	r.wantText("another container", c.pod.output(busybox("second", "echo fine")), "fine")
	if after := r.used(dir); after != before {
		r.Errorf("the old store had %d bytes, and has %d", before, after)
	}
}
