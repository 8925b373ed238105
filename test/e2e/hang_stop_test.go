package e2e

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestStopWhileTheDiskHangs stops a container that heeds no signal while nothing can be written: it is killed at its
// deadline and seen to have ended, and the next daemon knows it too.
func TestStopWhileTheDiskHangs(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			s := onVolume(t, runtime, 64)
			s.pull("busybox:latest")
			c := s.pod().start(busybox("main", "trap '' TERM; while :; do sleep 1; done"))
			thaw := s.freeze()
			s.ok(s.within(20*time.Second, func(ctx context.Context) error {
				return s.n.Runtime.StopContainer(ctx, c.cid, 1)
			}))
			s.wantKilled(c)
			s.ok(thaw())
			s.ok(s.n.Restart())
			s.wantKilled(c)
		})
	}
}

// wantKilled wants a container that was killed to say so.
func (s *small) wantKilled(c *ctr) {
	s.Helper()
	r, err := s.n.Runtime.ContainerStatus(ctx(), c.cid, false)
	s.ok(err)
	if st := r.GetStatus(); st.GetState() != v1.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 137 {
		s.Errorf("after the stop: %v", st)
	}
}
