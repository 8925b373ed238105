package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/timeouts"
	"berth/test/volume"
)

// TestDiskThatHangs has the disk of the root hang: whoever writes waits, and cannot be killed. What only asks is
// answered, callers get their deadline, and when the disk goes on, so does all that waited for it.
func TestDiskThatHangs(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			s := onVolume(t, runtime, 64)
			s.pull("busybox:latest")
			extra := s.push("hang-extra:latest", 1<<20)
			c := s.pod().start(busybox("main", "sleep 1000000"))
			other := s.pod()
			thaw := s.freeze()
			s.answers(c, 1)
			config := busybox("more", "sleep 1000000")
			for what, call := range map[string]func(context.Context) error{
				"create": func(ctx context.Context) error {
					_, err := s.n.Runtime.CreateContainer(ctx, c.pod.id, config, c.pod.config)
					return err
				},
				"pull": func(ctx context.Context) error {
					_, err := s.n.Images.PullImage(ctx, &v1.ImageSpec{Image: extra}, nil, nil)
					return err
				},
				"stop": func(ctx context.Context) error { return s.n.Runtime.StopPodSandbox(ctx, other.id) },
				"run": func(ctx context.Context) error {
					_, err := s.n.Runtime.RunPodSandbox(ctx, s.n.Pod("hangs"), "")
					return err
				},
			} {
				s.sub(what, func(r rig) { r.wantCode(r.within(500*time.Millisecond, call), codes.DeadlineExceeded) })
			}
			s.answers(c, 1)
			out := s.mustBerth("debug", "lanes")
			for _, has := range []string{"stop of the pod", "its record is being written"} {
				if !strings.Contains(out, has) {
					s.Errorf("berth debug lanes lacks %q: %s", has, out)
				}
			}
			s.ok(thaw())
			s.ok(s.pullErr(extra))
			s.ok(s.n.Runtime.StopPodSandbox(ctx(), other.id))
			more := c.pod.start(config)
			s.wantText("exec", more.exec("echo", "hi"), "hi")
			s.answers(c, 2)
		})
	}
}

// unseen reports whether a container's exit is unknown, and nobody can know it: one that ends while its monitor is
// stopped is reaped by nobody who would tell, and the kernel may not.
func unseen(st *v1.ContainerStatus) bool { return st.ExitCode == 255 && !fixture.KernelTellsExits() }

// TestMonitorThatHangs stops the monitors of pods, and then stops their containers and them. All end in time and with
// the exit codes that are true, also when the daemon was killed meanwhile; another pod sees nothing of it.
func TestMonitorThatHangs(t *testing.T) {
	t.Parallel() // it has nodes of its own, and mostly waits
	own(t, func(r rig) {
		other := r.pod()
		beside := other.start(busybox("beside", "sleep 1000000"))
		trap := "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"
		for name, restart := range map[string]bool{"daemon": false, "restarted daemon": true} {
			p := r.pod()
			heeds := p.start(busybox("heeds", trap))
			deaf := p.start(busybox("deaf", "trap '' TERM; echo ready; while :; do sleep 0.05; done"))
			left := p.start(busybox("left", "sleep 1000000"))
			heeds.logged("ready\n")
			deaf.logged("ready\n")
			monitor := p.monitor()
			r.ok(syscall.Kill(monitor, syscall.SIGSTOP))
			if restart {
				r.ok(r.n.Restart())
			}
			wait := timeouts.For(40 * time.Second)
			r.ok(r.within(wait, func(ctx context.Context) error { return r.n.Runtime.StopContainer(ctx, heeds.cid, 30) }))
			if st := heeds.status(); st.ExitCode != 7 || st.State != v1.ContainerState_CONTAINER_EXITED {
				r.Errorf("%s: of one that heeds its signal: %v, code %d, %q", name, st.State, st.ExitCode, st.Message)
			}
			if !restart {
				r.ok(syscall.Kill(p.monitor(), syscall.SIGSTOP)) // the next one hangs too
				r.ok(r.within(wait, func(ctx context.Context) error { return r.n.Runtime.StopContainer(ctx, deaf.cid, 1) }))
				if st := deaf.status(); st.ExitCode != 137 && !unseen(st) {
					r.Errorf("%s: of one that does not: code %d, %q", name, st.ExitCode, st.Message)
				}
				r.ok(syscall.Kill(p.monitor(), syscall.SIGSTOP))
			}
			r.ok(r.within(wait, func(ctx context.Context) error { return r.n.Runtime.StopPodSandbox(ctx, p.id) }))
			if st := left.status(); st.ExitCode != 137 && !unseen(st) {
				r.Errorf("%s: of one that its pod's stop ended: code %d, %q", name, st.ExitCode, st.Message)
			}
			p.remove()
			r.eventually("the monitor that hung is gone", func() bool { return syscall.Kill(monitor, 0) == syscall.ESRCH })
			r.wantText("exec", beside.exec("echo", "hi"), "hi")
		}
	})
}

// TestFirstThreadEnds has a container whose first thread has ended, and others not, when its pod's monitor hangs and is
// replaced: it runs on, and its end is the one that it comes to.
func TestFirstThreadEnds(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(webapp("leaderless", "leaderless"))
		other := p.start(busybox("other", "sleep 1000000"))
		c.logged("ready\n")
		r.ok(syscall.Kill(p.monitor(), syscall.SIGSTOP))
		wait := timeouts.For(40 * time.Second)
		r.ok(r.within(wait, func(ctx context.Context) error { return r.n.Runtime.StopContainer(ctx, other.cid, 0) }))
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("it is %s, exit code %d, %q", st.State, st.ExitCode, st.Reason)
		}
		r.ok(r.within(wait, func(ctx context.Context) error { return r.n.Runtime.StopContainer(ctx, c.cid, 0) }))
		if st := c.status(); st.ExitCode != 137 && !unseen(st) {
			r.Errorf("it has ended with %d, %q", st.ExitCode, st.Reason)
		}
		p.remove()
	})
}

// freeze has the disk hang until what it returns is called, or the test ends.
func (s *small) freeze() (thaw func() error) {
	s.Helper()
	var unfreeze func() error
	s.on(func(root string) (err error) {
		unfreeze, err = volume.Freeze(root)
		return err
	})
	thaw = sync.OnceValue(unfreeze)
	s.Cleanup(func() { s.ok(thaw()) })
	return thaw
}

// within calls with a deadline, and returns what came of it. A call that goes on long after it is an error.
func (r rig) within(deadline time.Duration, call func(context.Context) error) error {
	r.Helper()
	ctx, cancel := context.WithTimeout(ctx(), deadline)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(deadline + timeouts.For(30*time.Second)):
		return errors.New("the call goes on after its deadline")
	}
}

// answers wants everything that only asks to be answered, and so many images to be there.
func (s *small) answers(c *ctr, images int) {
	s.Helper()
	list := func(ctx context.Context) error {
		got, err := s.n.Images.ListImages(ctx, nil)
		if err == nil && len(got) != images {
			s.Errorf("%d images are listed", len(got))
		}
		return err
	}
	for what, call := range map[string]func(context.Context) error{
		"status":          func(ctx context.Context) error { _, err := s.n.Runtime.Status(ctx, true); return err },
		"version":         func(ctx context.Context) error { _, err := s.n.Runtime.Version(ctx, ""); return err },
		"list pods":       func(ctx context.Context) error { _, err := s.n.Runtime.ListPodSandbox(ctx, nil); return err },
		"list containers": func(ctx context.Context) error { _, err := s.n.Runtime.ListContainers(ctx, nil); return err },
		"list images":     list,
		"container status": func(ctx context.Context) error {
			_, err := s.n.Runtime.ContainerStatus(ctx, c.cid, true)
			return err
		},
		"pod status": func(ctx context.Context) error {
			_, err := s.n.Runtime.PodSandboxStatus(ctx, c.pod.id, true)
			return err
		},
		"stats":         func(ctx context.Context) error { _, err := s.n.Runtime.ContainerStats(ctx, c.cid); return err },
		"list stats":    func(ctx context.Context) error { _, err := s.n.Runtime.ListContainerStats(ctx, nil); return err },
		"image fs info": func(ctx context.Context) error { _, err := s.n.Images.ImageFsInfo(ctx); return err },
		"exec": func(ctx context.Context) error {
			_, _, err := s.n.Runtime.ExecSync(ctx, c.cid, []string{"true"}, 0)
			return err
		},
	} {
		if err := s.within(timeouts.For(30*time.Second), call); err != nil {
			s.Errorf("%s: %v", what, err)
		}
	}
}
