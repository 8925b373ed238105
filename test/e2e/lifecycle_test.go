package e2e

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

func TestContainerLife(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		config := busybox("life", "echo out; echo err >&2; until [ -e /tmp/go ]; do sleep 0.05; done; exit 3",
			func(c *v1.ContainerConfig) {
				c.Metadata.Attempt = 4
				c.Labels["a"], c.Annotations = "b", map[string]string{"c/d": "e\nf", "empty": ""}
			})
		began := time.Now()
		c := p.create(config)
		st := c.status()
		if st.State != v1.ContainerState_CONTAINER_CREATED || st.CreatedAt < began.UnixNano() || st.StartedAt != 0 ||
			st.FinishedAt != 0 {
			r.Errorf("after create: %v", st)
		}
		if _, err := os.Stat(c.log); err == nil {
			r.Error("the log file is there before the container was started")
		}
		r.ok(r.n.Runtime.StartContainer(ctx(), c.cid))
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING || st.StartedAt < st.CreatedAt {
			r.Errorf("after start: %v", st)
		}
		time.Sleep(200 * time.Millisecond)
		c.release()
		st = c.finish()
		took := time.Duration(st.FinishedAt - st.StartedAt)
		if st.ExitCode != 3 || st.Reason != "Error" || took < 180*time.Millisecond || took > time.Since(began) {
			r.Errorf("after exit: code %d, reason %q, took %s", st.ExitCode, st.Reason, took)
		}
		c.wantIdentity(st, config)
		r.wantText("stdout", c.text("stdout"), "out")
		r.wantText("stderr", c.text("stderr"), "err")
		r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
		_, err := r.n.Runtime.ContainerStatus(ctx(), c.cid, false)
		r.wantCode(err, codes.NotFound, c.cid)
	})
}

// wantIdentity checks that a status says what the request said.
func (c *ctr) wantIdentity(st *v1.ContainerStatus, config *v1.ContainerConfig) {
	c.Helper()
	image, err := c.n.Images.ImageStatus(ctx(), config.Image, false)
	c.ok(err)
	if st.Id != c.cid || st.Metadata.Name != config.Metadata.Name || st.Metadata.Attempt != config.Metadata.Attempt {
		c.Errorf("identity %v", st.Metadata)
	}
	if fmt.Sprint(st.Labels) != fmt.Sprint(config.Labels) || fmt.Sprint(st.Annotations) != fmt.Sprint(config.Annotations) {
		c.Errorf("labels %v, annotations %v", st.Labels, st.Annotations)
	}
	if st.Image.GetImage() != config.Image.Image || !slices.Contains(image.Image.RepoDigests, st.ImageRef) ||
		st.ImageId != image.Image.Id {
		c.Errorf("image %q, ref %q, id %q; the image's id is %q", st.Image.GetImage(), st.ImageRef, st.ImageId,
			image.Image.Id)
	}
	if st.LogPath != c.log {
		c.Errorf("log path %q, wanted %q", st.LogPath, c.log)
	}
}

func TestExitCodes(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		for _, code := range []int{0, 1, 7, 126, 127, 137, 255} {
			st := p.start(webapp(fmt.Sprintf("exit-%d", code), fmt.Sprintf("exit %d", code))).finish()
			reason := "Error"
			if code == 0 {
				reason = "Completed"
			}
			if int(st.ExitCode) != code || st.Reason != reason {
				r.Errorf("exit %d: code %d, reason %q", code, st.ExitCode, st.Reason)
			}
		}
	})
}

// seconds is a stop's timeout that must not run out.
func seconds(n int64) int64 { return n * int64(timeouts.Scale()) }

func TestStop(t *testing.T) {
	each(t, func(r rig) {
		r.pull("usr1:latest")
		p := r.pod()
		for _, c := range []struct {
			name, mode, ready, image string
			signal                   v1.Signal
			timeout                  int64
			code                     int32
			says                     string
			least, most              time.Duration
		}{
			{"term", "count 10ms 100000", "tick", "busybox", 0, seconds(120), 42, "bye", 0, time.Minute},
			{"for-ever", "count 10ms 100000", "tick", "busybox", 0, math.MaxInt64, 42, "bye", 0, time.Minute},
			{"stubborn", "stubborn", "ready", "busybox", 0, 1, 137, "ready", time.Second, time.Minute},
			{"at-once", "count 10ms 100000", "tick", "busybox", 0, 0, 137, "tick", 0, time.Minute},
			{"negative", "count 10ms 100000", "tick", "busybox", 0, -5, 137, "tick", 0, time.Minute},
			{"image-signal", "signal", "ready", "usr1", 0, seconds(120), 0, "signal 10", 0, time.Minute},
			{"request-signal", "signal", "ready", "usr1", v1.Signal_SIGNAL_SIGINT, seconds(120), 0, "signal 2", 0, time.Minute},
			{"realtime-signal", "signal", "ready", "busybox", v1.Signal_SIGNAL_SIGRTMINPLUS3, seconds(120), 0, "signal 37", 0,
				time.Minute},
		} {
			config := webapp(c.name, c.mode, func(config *v1.ContainerConfig) {
				config.Image.Image, config.StopSignal = ref(c.image+":latest"), c.signal
			})
			ctr := p.start(config)
			ctr.logged(c.ready)
			began := time.Now()
			r.ok(r.n.Runtime.StopContainer(ctx(), ctr.cid, c.timeout))
			took, st := time.Since(began), ctr.status()
			ofImage := map[string]v1.Signal{"usr1": v1.Signal_SIGNAL_SIGUSR1}[c.image]
			if want := cmp.Or(c.signal, ofImage, v1.Signal_SIGNAL_SIGTERM); st.StopSignal != want {
				r.Errorf("%s: the status has the signal %v, wanted %v", c.name, st.StopSignal, want)
			}
			if st.State != v1.ContainerState_CONTAINER_EXITED || st.ExitCode != c.code {
				r.Errorf("%s: %s with code %d, wanted %d", c.name, st.State, st.ExitCode, c.code)
			}
			if took < c.least || took > timeouts.For(c.most) {
				r.Errorf("%s: took %s, wanted %s to %s", c.name, took, c.least, c.most)
			}
			ctr.logged(c.says)
			r.ok(r.n.Runtime.StopContainer(ctx(), ctr.cid, c.timeout)) // again, as the kubelet does
		}
	})
}

// TestShorterStop checks that a stop with a short timeout is not held up by one with a long timeout in flight.
func TestShorterStop(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(webapp("main", "stubborn"))
		c.logged("ready")
		long := make(chan error, 1)
		go func() { long <- r.n.Runtime.StopContainer(ctx(), c.cid, seconds(120)) }()
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		if took := time.Since(began); took > timeouts.For(time.Minute) {
			r.Errorf("the short stop took %s", took)
		}
		r.ok(<-long)
	})
}

func TestStopKillsTheWholeContainer(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod(sharedPID).start(busybox("main", "sleep 54321 & sleep 54321 & echo up; wait"))
		c.logged("up")
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		if n := countProcesses("54321", c.cid); n != 0 {
			r.Errorf("%d processes of the container still run", n)
		}
	})
}

func TestOutOfMemory(t *testing.T) {
	each(t, func(r rig) {
		config := webapp("hungry", "alloc 300", func(c *v1.ContainerConfig) {
			c.Linux.Resources.MemoryLimitInBytes = 64 << 20
			c.Linux.Resources.MemorySwapLimitInBytes = 64 << 20
		})
		st := r.pod().start(config).finish()
		if st.ExitCode != 137 || st.Reason != "OOMKilled" {
			r.Errorf("code %d, reason %q %q", st.ExitCode, st.Reason, st.Message)
		}
	})
}

// TestStoppedIsNotOutOfMemory has a child of a container be killed for memory, and the container much later because it
// is stopped.
func TestStoppedIsNotOutOfMemory(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "trap '' TERM; /webapp alloc 300; echo child $?; while :; do sleep 0.1; done",
			func(c *v1.ContainerConfig) {
				c.Linux.Resources.MemoryLimitInBytes = 64 << 20
				c.Linux.Resources.MemorySwapLimitInBytes = 64 << 20
			}))
		c.logged("child 137")
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 1))
		if st := c.status(); st.ExitCode != 137 || st.Reason != "Error" {
			r.Errorf("code %d, reason %q %q", st.ExitCode, st.Reason, st.Message)
		}
	})
}

func TestStartFails(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		config := node.Container("absent", ref("busybox:latest"), []string{"/no/such/program"})
		id, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
		if err == nil {
			err = r.n.Runtime.StartContainer(ctx(), id)
		}
		if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
			r.Errorf("the error does not name the program: %v", err)
		}
		if id != "" {
			r.ok(r.n.Runtime.RemoveContainer(ctx(), id))
		}
		p.wantNoContainer("absent")
	})
}

func TestRemoveWhileRunning(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(webapp("main", "stubborn"))
		c.logged("ready")
		r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
		p.wantNoContainer("main")
		if n := countProcesses("stubborn", c.cid); n != 0 {
			r.Errorf("%d processes outlive their container", n)
		}
		c = p.start(webapp("main", "stubborn")) // the name is free again
		c.logged("ready")
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
		_, err := r.n.Runtime.ContainerStatus(ctx(), c.cid, false)
		r.wantCode(err, codes.NotFound)
		_, err = r.n.Runtime.PodSandboxStatus(ctx(), p.id, false)
		r.wantCode(err, codes.NotFound)
	})
}

func TestListContainers(t *testing.T) {
	each(t, func(r rig) {
		p, other := r.pod(), r.pod()
		one := p.start(busybox("one", "sleep 100", func(c *v1.ContainerConfig) { c.Labels["tier"] = "a" }))
		two := p.start(busybox("two", "true", func(c *v1.ContainerConfig) { c.Labels["tier"] = "b" }))
		three := other.create(busybox("three", "true", func(c *v1.ContainerConfig) { c.Labels["tier"] = "a" }))
		two.finish()
		state := func(s v1.ContainerState) *v1.ContainerStateValue { return &v1.ContainerStateValue{State: s} }
		in := func(p *pod) *v1.ContainerFilter { return &v1.ContainerFilter{PodSandboxId: p.id} }
		for _, c := range []struct {
			name   string
			filter *v1.ContainerFilter
			want   []string
		}{
			{"pod", in(p), []string{one.cid, two.cid}},
			{"other pod", in(other), []string{three.cid}},
			{"id", &v1.ContainerFilter{Id: two.cid}, []string{two.cid}},
			{"beginnings", &v1.ContainerFilter{Id: two.cid[:20], PodSandboxId: p.id[:20]}, []string{two.cid}},
			{"running", &v1.ContainerFilter{PodSandboxId: p.id, State: state(v1.ContainerState_CONTAINER_RUNNING)},
				[]string{one.cid}},
			{"exited", &v1.ContainerFilter{PodSandboxId: p.id, State: state(v1.ContainerState_CONTAINER_EXITED)},
				[]string{two.cid}},
			{"label", &v1.ContainerFilter{PodSandboxId: p.id, LabelSelector: map[string]string{"tier": "b"}}, []string{two.cid}},
			{"no match", &v1.ContainerFilter{Id: one.cid, PodSandboxId: other.id}, nil},
			{"unknown id", &v1.ContainerFilter{Id: strings.Repeat("0", 64)}, nil},
		} {
			got, err := r.n.Runtime.ListContainers(ctx(), c.filter)
			r.ok(err)
			ids := map[string]bool{}
			for _, x := range got {
				ids[x.Id] = true
				if x.Image.GetImage() == "" || x.ImageRef == "" || x.ImageId == "" || x.CreatedAt == 0 || x.PodSandboxId == "" {
					r.Errorf("%s: incomplete: %v", c.name, x)
				}
			}
			for _, id := range c.want {
				if !ids[id] {
					r.Errorf("%s: %s is missing", c.name, id)
				}
			}
			if len(ids) != len(c.want) {
				r.Errorf("%s: %d containers, wanted %d", c.name, len(ids), len(c.want))
			}
		}
	})
}

// TestSameCreateTwice checks that a request made again joins the first, and that another under its name takes over.
func TestSameCreateTwice(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		config := busybox("twin", "sleep 100")
		ids := make(chan string, 4)
		for range cap(ids) {
			go func() {
				id, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
				if err != nil {
					r.Error(err)
				}
				ids <- id
			}()
		}
		first := <-ids
		for range cap(ids) - 1 {
			if id := <-ids; id != first {
				r.Errorf("the same request gave %s and %s", first, id)
			}
		}
	})
}
