package e2e

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
	"berth/test/volume"
)

// small is a rig whose daemon has its root on a small file system of its own.
type small struct {
	rig
	v    *volume.Volume
	fill func(dir string) (path string, err error)
}

// onVolume makes a node on an ext4 of that many MiB.
func onVolume(t *testing.T, runtime string, mib int, mkfs ...string) *small {
	t.Helper()
	if err := volume.Ext4.Available(); err != nil {
		t.Skip(err)
	}
	v, err := volume.Make(t.TempDir(), volume.Ext4, mib, append([]string{"-m", "0"}, mkfs...)...)
	if err != nil {
		t.Fatal(err)
	}
	mount := func(root string) error { return v.Mount(root) }
	return &small{rig: ownNode(t, node.Options{Runtime: runtime, Mount: mount}), v: v, fill: volume.Fill}
}

// on does something inside the node, where its file system is mounted.
func (s *small) on(f func(root string) error) {
	s.Helper()
	s.ok(s.n.Space.Do(func() error { return f(s.n.Root) }))
}

// full fills what is free by now: whatever comes next finds nothing.
func (s *small) full() {
	s.Helper()
	s.on(func(root string) error { _, err := s.fill(root); return err })
}

// roomy takes away what full has made.
func (s *small) roomy() {
	s.Helper()
	s.on(func(root string) error {
		return errors.Join(os.RemoveAll(root+"/filler"), os.RemoveAll(root+"/fillers"))
	})
}

// used is how many blocks and inodes are in use.
func (s *small) used() (blocks, inodes uint64) {
	s.Helper()
	s.on(func(root string) error {
		var st unix.Statfs_t
		err := unix.Statfs(root, &st)
		blocks, inodes = st.Blocks-st.Bfree, st.Files-st.Ffree
		return err
	})
	return blocks, inodes
}

// files lists what lies below a directory of the root.
func (s *small) files(dir string) (list []string) {
	s.Helper()
	s.on(func(root string) error {
		return filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			list = append(list, path)
			return err
		})
	})
	return list
}

// push makes an image with a layer of one file of so many bytes that no file system stores in fewer.
func (s *small) push(name string, size int) string {
	s.Helper()
	body := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(body)
	img, err := fixture.Recipe{Layers: [][]fixture.File{{{Name: "data", Body: body}}},
		Compression: fixture.LayerPlain}.Build()
	s.ok(err)
	_, err = onRegistry(s.T).Push(name, img)
	s.ok(err)
	return ref(name)
}

func (s *small) pullErr(image string) error {
	_, err := s.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: image}, nil, nil)
	return err
}

// TestPullThatDoesNotFit fails a pull for lack of room, and wants everything else to go on.
func TestPullThatDoesNotFit(t *testing.T) {
	s := onVolume(t, runtimes()[0], 48)
	s.pull("busybox:latest")
	c := s.pod().start(webapp("running", "count 5ms 1000000"))
	big, little := s.push("full-big:latest", 64<<20), s.push("full-little:latest", 1<<20)
	blocks, inodes := s.used()
	s.wantCode(s.pullErr(big), codes.ResourceExhausted, s.n.Root+"/images", "images.min_free_percent", "MiB free",
		"remove images")
	s.eventually("what the pull wrote is gone", func() bool {
		b, i := s.used()
		// the log of the pod and records grow a little
		return b <= blocks+64 && i <= inodes+8 && len(s.files("images/ingest")) == 1
	})
	s.wantText("exec", c.exec("echo", "hi"), "hi")
	s.ok(s.pullErr(little))
	images, err := s.n.Images.ListImages(ctx(), nil)
	s.ok(err)
	if len(images) != 2 {
		s.Errorf("%d images", len(images))
	}
	s.wantText("a container after it", c.pod.output(busybox("after", "echo fine")), "fine")
}

// TestFullDisk wants all that gives room back to work when there is none, before and after the daemon is killed, and
// all that needs some to say so.
func TestFullDisk(t *testing.T) {
	ways := map[string]func(*testing.T, string) *small{
		"bytes": func(t *testing.T, runtime string) *small { return onVolume(t, runtime, 48) },
		"inodes": func(t *testing.T, runtime string) *small {
			s := onVolume(t, runtime, 48, "-N", "2048")
			s.fill = volume.FillInodes
			return s
		},
	}
	for name, make := range ways {
		for _, runtime := range runtimes() {
			t.Run(name+" "+runtime, func(t *testing.T) {
				t.Parallel()
				testFull(make(t, runtime))
			})
		}
	}
}

func testFull(s *small) {
	s.pull("busybox:latest")
	extra := s.push("full-extra:latest", 1<<20)
	s.ok(s.pullErr(extra))
	p := s.pod()
	runs := p.start(webapp("runs", "count 5ms 1000000"))
	ends := p.start(busybox("ends", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"))
	made := p.create(busybox("made", "true"))
	kept := s.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-kept" })
	keeps := kept.start(busybox("keeps", "echo ready; sleep 1000000"))
	ends.logged("ready")
	keeps.logged("ready")
	s.full()
	s.sub("what needs room says so", func(r rig) { s.refuses(r, p) })
	s.sub("reads", func(r rig) { s.reads(r, runs) })
	s.sub("stop a container", func(r rig) {
		s.full()
		r.ok(r.n.Runtime.StopContainer(ctx(), ends.cid, seconds(30)))
		wantExit(r, ends, 7)
	})
	s.sub("kill the daemon", func(r rig) {
		s.full()
		r.ok(r.n.Restart())
		wantExit(r, ends, 7)
		s.reads(r, runs)
	})
	s.sub("remove a container", func(r rig) {
		for _, c := range []*ctr{ends, made, runs} {
			s.full()
			r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
		}
		if left := s.files("pods/" + p.id + "/c"); len(left) != 1 {
			r.Errorf("left of the containers: %v", left)
		}
	})
	s.sub("remove an image", func(r rig) {
		s.full()
		before, _ := s.used()
		r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: extra}))
		r.eventually("its blocks are free", func() bool { after, _ := s.used(); return after+200 <= before })
	})
	s.sub("stop and remove a pod", func(r rig) {
		s.full()
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), kept.id))
		s.full()
		r.ok(r.n.Restart())
		wantExit(r, keeps, 137)
		r.eventually("the pod is known to be stopped", func() bool {
			return kept.on(r).status().State == v1.PodSandboxState_SANDBOX_NOTREADY
		})
		s.full()
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), kept.id))
		s.full()
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		s.full()
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
		if left := s.files("pods"); len(left) != 1 {
			r.Errorf("left of the pods: %v", left)
		}
	})
	s.roomy()
	s.wantText("a container when there is room again", s.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-again" }).
		output(busybox("again", "echo fine")), "fine")
}

// refuses wants what needs room to fail with words that help, and to leave nothing.
func (s *small) refuses(r rig, p *pod) {
	_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("more", "true"), p.config)
	r.wantCode(err, codes.ResourceExhausted, p.id, "no space left on device", s.n.Root, "remove containers")
	config := r.n.Pod("more")
	_, err = r.n.Runtime.RunPodSandbox(ctx(), config, "")
	r.wantCode(err, codes.ResourceExhausted, "more", "no space left on device", s.n.Root, "remove containers")
	r.wantCode(s.pullErr(ref("entry:latest")), codes.ResourceExhausted, "entry:latest", "no space left on device",
		s.n.Root+"/images", "remove images")
	containers, err := r.n.Runtime.ListContainers(ctx(), nil)
	r.ok(err)
	pods, err := r.n.Runtime.ListPodSandbox(ctx(), nil)
	r.ok(err)
	if len(containers) != 4 || len(pods) != 2 {
		r.Errorf("%d containers and %d pods are listed", len(containers), len(pods))
	}
	if left := s.files("images/ingest"); len(left) != 1 {
		r.Errorf("left of the pull: %v", left)
	}
	if left := s.files("pods"); len(left) == 0 || strings.Contains(strings.Join(left, "\n"), "/.tmp-") {
		r.Errorf("left of the records: %v", left)
	}
}

// reads wants everything that only asks to be answered.
func (s *small) reads(r rig, c *ctr) {
	c = &ctr{c.on(r), c.cid, c.log}
	r.wantText("exec", c.exec("echo", "hi"), "hi")
	_, err := r.n.Runtime.Status(ctx(), true)
	r.ok(err)
	images, err := r.n.Images.ListImages(ctx(), nil)
	r.ok(err)
	if len(images) != 2 {
		r.Errorf("%d images are listed", len(images))
	}
	_, err = r.n.Images.ImageFsInfo(ctx())
	r.ok(err)
	if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
		r.Errorf("the container is %s", st.State)
	}
	if st := c.pod.status(); st.State != v1.PodSandboxState_SANDBOX_READY {
		r.Errorf("the pod is %s", st.State)
	}
	before := c.text("stdout")
	r.eventually("the log grows", func() bool { return len(c.text("stdout")) > len(before) })
}

func wantExit(r rig, c *ctr, code int32) {
	r.Helper()
	c = &ctr{c.on(r), c.cid, c.log}
	if st := c.status(); st.State != v1.ContainerState_CONTAINER_EXITED || st.ExitCode != code {
		r.Errorf("the container is %s with exit code %d (%s), wanted %d", st.State, st.ExitCode, st.Message, code)
	}
}

// TestContainerFillsTheDisk has a container write until nothing is left: it sees the full disk, and can be removed.
func TestContainerFillsTheDisk(t *testing.T) {
	s := onVolume(t, runtimes()[0], 48)
	s.pull("busybox:latest")
	p := s.pod()
	blocks, _ := s.used()
	c := p.start(busybox("hog", "cat /dev/zero >/hog; sync; echo full; sleep 1000000"))
	c.logged("full")
	p.ok(s.n.Runtime.StopContainer(ctx(), c.cid, 0))
	p.ok(s.n.Runtime.RemoveContainer(ctx(), c.cid))
	s.eventually("its room is free again", func() bool { b, _ := s.used(); return b <= blocks+64 })
	s.wantText("the next container", p.output(busybox("next", "echo fine")), "fine")
}

// TestReadOnlyDisk breaks the file system under a node, as errors=remount-ro does. Kernels 6.6 to 6.14 shut such a file
// system down, so that not even reads succeed; others leave it readable.
func TestReadOnlyDisk(t *testing.T) {
	s := onVolume(t, runtimes()[0], 48)
	s.pull("busybox:latest")
	p := s.pod()
	c := p.start(webapp("runs", "count 5ms 1000000"))
	image := s.push("full-read-only:latest", 1<<20)
	r, says := s.rig, "is read-only"
	s.on(func(root string) error {
		// What was written a moment ago is on the disk, as it is within a second: a record of which half is lost is another
		// test.
		dir, err := os.Open(root)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close()); err != nil {
			return err
		}
		err = s.v.Break()
		if errors.Is(os.WriteFile(root+"/probe", nil, 0o600), unix.EIO) {
			says = "shut it down"
		}
		return err
	})
	_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("more", "true"), p.config)
	if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "dmesg") {
		r.Errorf("create on a read-only file system: %v", err)
	}
	err = s.pullErr(image)
	if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "RegistryUnavailable") {
		r.Errorf("pull to a read-only file system: %v", err)
	}
	if says == "is read-only" {
		r.wantText("exec", c.exec("echo", "hi"), "hi")
	}
	images, err := r.n.Images.ListImages(ctx(), nil)
	r.ok(err)
	if len(images) != 1 {
		r.Errorf("%d images", len(images))
	}
	r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
	wantExit(r, c, 137)
	if err := r.n.Runtime.RemovePodSandbox(ctx(), p.id); err == nil || !strings.Contains(err.Error(), says) {
		r.Errorf("removal from a read-only file system: %v", err)
	}
	// The operator stops the daemon, repairs the file system and mounts it anew.
	r.ok(r.n.Kill9())
	s.on(func(root string) error { return errors.Join(s.v.Unmount(), s.v.Repair(), s.v.Mount(root)) })
	r.ok(r.n.Start())
	r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
}
