package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
	"berth/test/volume"
)

// TestVolumeThatHangs has a volume hang, as a network disk does whose server is gone, and the daemon start anew: the
// pod with the volume delays nobody, is stopped and removed like any other, and what needs the volume has its deadline.
func TestVolumeThatHangs(t *testing.T) {
	if err := volume.SlowAvailable(); err != nil {
		t.Skip(err)
	}
	own(t, func(r rig) {
		v, source, at := (*volume.Slow)(nil), r.TempDir(), r.TempDir()
		r.ok(os.WriteFile(filepath.Join(source, "f"), []byte("here\n"), 0o644))
		r.ok(r.n.Space.Do(func() (err error) { v, err = volume.MountSlow(source, at); return err }))
		r.Cleanup(func() { r.ok(r.n.Space.Do(v.Close)) })
		p := r.pod()
		idle := p.start(busybox("idle", "sleep 100000", mount(at, "/vol")))
		reads := p.start(busybox("reads", "while cat /vol/f; do sleep 0.05; done", mount(at, "/vol")))
		reads.logged("here")
		var others []*ctr
		for range 4 {
			others = append(others, r.pod().start(busybox("main", "sleep 100000")))
		}
		goOn := v.Hang()
		r.Cleanup(goOn) // before the pods are removed
		r.eventually("the reader waits", func() bool { return v.Waiting() > 0 })
		r.ok(r.n.Kill9())
		r.ok(r.n.Start())
		for _, c := range append(others, idle, reads) {
			if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
				r.Errorf("%s after the start: %v", c.cid, st)
			}
		}
		for _, c := range others {
			r.wantText("exec", c.exec("echo", "hi"), "hi")
			r.ok(r.n.Runtime.ReopenContainerLog(ctx(), c.cid))
		}
		err := r.within(timeouts.For(time.Second), func(ctx context.Context) error {
			_, err := r.n.Runtime.CreateContainer(ctx, p.id, busybox("more", "true", mount(at, "/vol")), p.config)
			return err
		})
		if err == nil {
			r.Error("a container is made while its volume hangs")
		}
		minute := timeouts.For(time.Minute)
		r.ok(r.within(minute, func(ctx context.Context) error { return r.n.Runtime.StopContainer(ctx, idle.cid, 1) }))
		r.ok(r.within(minute, func(ctx context.Context) error { return r.n.Runtime.RemoveContainer(ctx, idle.cid) }))
		r.wantText("exec", r.pod().start(busybox("new", "sleep 100000")).exec("echo", "hi"), "hi")

		goOn()
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
	})
}

// TestStopWhileACreateWaitsForAVolume has a volume hang while a container with it is made: its pod is stopped and
// removed meanwhile, other pods mount other volumes, and nothing is made when the volume goes on.
func TestStopWhileACreateWaitsForAVolume(t *testing.T) {
	if err := volume.SlowAvailable(); err != nil {
		t.Skip(err)
	}
	own(t, func(r rig) {
		v, source, at := (*volume.Slow)(nil), r.TempDir(), r.TempDir()
		r.ok(os.Mkdir(filepath.Join(source, "sub"), 0o755))
		r.ok(r.n.Space.Do(func() (err error) { v, err = volume.MountSlow(source, at); return err }))
		r.Cleanup(func() { r.ok(r.n.Space.Do(v.Close)) })
		p := r.pod()
		idle := p.start(busybox("idle", "sleep 100000"))
		goOn := v.Hang()
		r.Cleanup(goOn)
		made := make(chan error, 1)
		go func() {
			more := busybox("more", "true", mount(at+"/sub", "/vol"))
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, more, p.config)
			made <- err
		}()
		r.eventually("the creation waits for the volume", func() bool { return v.Waiting() > 0 })
		r.pod().output(busybox("other", "true", mount(r.TempDir(), "/vol")))
		minute := timeouts.For(time.Minute)
		r.ok(r.within(minute, func(ctx context.Context) error { return r.n.Runtime.StopPodSandbox(ctx, p.id) }))
		if err := <-made; err == nil {
			r.Error("the container is made")
		}
		if st := idle.status(); st.State != v1.ContainerState_CONTAINER_EXITED {
			r.Errorf("the other container is %v", st.State)
		}
		r.ok(r.within(minute, func(ctx context.Context) error { return r.n.Runtime.RemovePodSandbox(ctx, p.id) }))
		goOn()
		r.eventually("nobody waits any more", func() bool { return v.Waiting() == 0 })
	})
}

// TestDiskThatAnswersNothing has the file system of a container's writable layer answer no call, not even stat, as a
// network disk does whose server is gone. What only asks about the container is answered all the same, with what is
// known without the disk.
func TestDiskThatAnswersNothing(t *testing.T) {
	if err := volume.SlowAvailable(); err != nil {
		t.Skip(err)
	}
	own(t, func(r rig) {
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Annotations = map[string]string{"pod.berth/storage-size": "4Mi"} })
		c := p.start(busybox("main", "sleep 100000"))
		layers, source := filepath.Join(r.n.Root, "pods", p.id, "c"), r.TempDir()
		var v *volume.Slow
		r.ok(r.n.Space.Do(func() (err error) { v, err = volume.MountSlow(source, layers); return err }))
		free := sync.OnceFunc(func() { r.ok(r.n.Space.Do(v.Close)) })
		r.Cleanup(free) // before the pod is removed
		v.Hang()
		for what, call := range map[string]func(context.Context) error{
			"container status": func(ctx context.Context) error {
				resp, err := r.n.Runtime.ContainerStatus(ctx, c.cid, true)
				if err == nil && !strings.Contains(resp.Info["info"], `"limitBytes":4194304`) {
					r.Errorf("the limit is not told: %s", resp.Info["info"])
				}
				return err
			},
			"pod status": func(ctx context.Context) error {
				_, err := r.n.Runtime.PodSandboxStatus(ctx, p.id, true)
				return err
			},
			"stats":      func(ctx context.Context) error { _, err := r.n.Runtime.ContainerStats(ctx, c.cid); return err },
			"list stats": func(ctx context.Context) error { _, err := r.n.Runtime.ListContainerStats(ctx, nil); return err },
			"pod stats":  func(ctx context.Context) error { _, err := r.n.Runtime.PodSandboxStats(ctx, p.id); return err },
			"metrics":    func(ctx context.Context) error { _, err := r.n.Runtime.ListPodSandboxMetrics(ctx); return err },
			"image fs":   func(ctx context.Context) error { _, err := r.n.Images.ImageFsInfo(ctx); return err },
		} {
			if err := r.within(timeouts.For(5*time.Second), call); err != nil {
				r.Errorf("%s: %v", what, err)
			}
		}
		if v.Waiting() == 0 {
			r.Error("nobody has asked the disk: the test shows nothing")
		}
		r.wantText("exec", c.exec("echo", "hi"), "hi")
		free()
	})
}
