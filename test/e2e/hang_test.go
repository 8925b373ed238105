package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/patience"
	"berth/test/volume"
)

// TestDiskThatHangs has the disk of the root hang: whoever writes waits, and cannot be killed. What only asks is
// answered, callers get their deadline, and when the disk goes on, so does all that waited for it.
func TestDiskThatHangs(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
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
	case <-time.After(deadline + patience.For(30*time.Second)):
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
		if err := s.within(patience.For(30*time.Second), call); err != nil {
			s.Errorf("%s: %v", what, err)
		}
	}
}
