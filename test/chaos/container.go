package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

// container is one of a pod, and what is to come of it.
type container struct {
	l       *life
	name    string
	args    string // of /webapp
	log     numbered
	code    int32 // with which it ends
	grace   int64 // of its stop
	attempt uint32
	id      string
	made    time.Time
}

// mark is the last argument of the container's process, by which it is known on the machine.
func (c *container) mark() string { return fmt.Sprintf("chaos=%s/%s/%d", c.l.name, c.name, c.attempt) }

func (c *container) logPath() string {
	return filepath.Join(c.l.config.LogDirectory, c.name, fmt.Sprintf("%d.log", c.attempt))
}

func (c *container) request() *cri.CreateContainerRequest {
	return &cri.CreateContainerRequest{
		PodSandboxId: c.l.id, SandboxConfig: c.l.config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: c.name, Attempt: c.attempt},
			Image:    &cri.ImageSpec{Image: c.l.image, UserSpecifiedImage: c.l.image},
			Command:  append(append([]string{"/webapp"}, strings.Fields(c.args)...), c.mark()),
			LogPath:  fmt.Sprintf("%s/%d.log", c.name, c.attempt),
			Linux: &cri.LinuxContainerConfig{
				Resources: &cri.LinuxContainerResources{},
				SecurityContext: &cri.LinuxContainerSecurityContext{
					NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
				},
			},
		},
	}
}

// attempts is how often a container is made anew whose start is said to have failed.
const attempts = 50

// start makes and starts the container. A start that failed is followed by the next attempt, as a kubelet has it; of
// the one that failed nothing may have run.
func (c *container) start() error {
	if err := os.MkdirAll(filepath.Dir(c.logPath()), 0o755); err != nil {
		return err
	}
	for ; c.attempt < attempts; c.attempt++ {
		c.made = time.Now()
		err := c.l.repeat("create container", func(ctx context.Context) error {
			resp, err := c.l.pods.CreateContainer(ctx, c.request())
			c.id = resp.GetContainerId()
			c.l.s.history.made(c.id, c.l.id)
			return err
		})
		if err != nil {
			return err
		}
		if err = c.begin(); err == nil {
			return c.await()
		}
		if !errors.As(err, new(final)) {
			return err
		}
		c.neverRan(err)
	}
	return fmt.Errorf("start of %s in %s is %w: %d attempts failed", c.name, c.l.name, errStuck, attempts)
}

// begin starts the container. The answer of a start that was made may have been lost, so it looks before it tries
// again.
func (c *container) begin() error {
	return c.l.repeat("start container "+c.id, func(ctx context.Context) error {
		_, err := c.l.pods.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.id})
		if err == nil {
			return nil
		}
		st, look := c.status(ctx)
		switch {
		case look != nil:
			return errors.Join(err, look)
		case st.State == cri.ContainerState_CONTAINER_RUNNING:
			return nil
		case st.State == cri.ContainerState_CONTAINER_EXITED && failedStart(st):
			return final{fmt.Errorf("%s: %s: %w", st.Reason, st.Message, err)}
		case st.State == cri.ContainerState_CONTAINER_EXITED:
			return nil
		}
		return err
	})
}

// failedStart says of a container that ended that it was told never to have run: 128 is what runtimes say of those.
func failedStart(st *cri.ContainerStatus) bool {
	return st.ExitCode == 128 && (st.Reason == "StartError" || st.Reason == "ContainerCannotRun")
}

// neverRan counts a start that failed. One that wrote something did run.
func (c *container) neverRan(err error) {
	if text, _ := os.ReadFile(c.logPath()); len(text) > 0 {
		c.l.s.report.lose(LostExit, "%s is said not to have run, and has a log of %d bytes: %v", c, len(text), err)
		return
	}
	loss := FailedStart
	if !c.l.s.history.promisesStart(c.id) {
		loss = Unpromised
	}
	c.l.s.report.lose(loss, "%s: %v", c, err)
}

func (c *container) String() string {
	return fmt.Sprintf("container %s of pod %s, %s (%s)", c.id, c.l.id, c.mark(), c.args)
}

func (c *container) status(ctx context.Context) (*cri.ContainerStatus, error) {
	resp, err := c.l.pods.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.id})
	if err != nil {
		return nil, definite(err)
	}
	return resp.GetStatus(), nil
}

// await waits until the container has written something: only then it listens to signals.
func (c *container) await() error {
	deadline := time.Now().Add(c.l.limit)
	for {
		if info, err := os.Stat(c.logPath()); err == nil && info.Size() > 0 {
			return nil
		}
		if c.isCutOff() {
			c.l.s.report.lose(Unpromised, "%s: its runtime was killed as it let the process go", c)
			return final{errors.New("it has not run")}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the first line of %s is %w: %s", c, errStuck, c.state())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// isCutOff reports whether the container has ended because its runtime was killed as it let the process go.
func (c *container) isCutOff() bool {
	if c.l.s.history.promisesLetGo(c.id) {
		return false
	}
	st, err := c.quickStatus()
	return err == nil && st.State == cri.ContainerState_CONTAINER_EXITED && c.l.s.history.cutOff(c.id, st.ExitCode)
}

// state tells how the container is, for whoever looks into what was lost.
func (c *container) state() string {
	st, err := c.quickStatus()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d %s %s", st.State, st.ExitCode, st.Reason, st.Message)
}

func (c *container) quickStatus() (*cri.ContainerStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeouts.For(10*time.Second))
	defer cancel()
	return c.status(ctx)
}

// execs runs a few programs in a container that runs for as long as it is wanted.
func (c *container) execs() error {
	if c.log.how == ends {
		return nil
	}
	for range c.l.random.IntN(3) {
		code := int32(c.l.random.IntN(100))
		var resp *cri.ExecSyncResponse
		err := c.l.repeat("exec in "+c.id, func(ctx context.Context) (err error) {
			resp, err = c.l.pods.ExecSync(ctx, &cri.ExecSyncRequest{
				ContainerId: c.id, Cmd: []string{"/webapp", "count", "0s", "2", fmt.Sprint(code)}, Timeout: 60,
			})
			return c.lives(ctx, definite(err))
		})
		if errors.As(err, new(final)) {
			loss := LostPod
			if c.isCutOff() {
				loss = Unpromised
			}
			c.l.s.report.lose(loss, "exec in %s: %v", c, err)
			c.keepLog()
			return err
		}
		if err != nil {
			return err
		}
		if out := string(resp.Stdout); resp.ExitCode != code || out != "tick 1\ntick 2\n" {
			c.l.s.report.lose(WrongAnswer, "exec in %s: exit code %d instead of %d, output %q, errors %q",
				c, resp.ExitCode, code, out, resp.Stderr)
		}
		c.l.pause()
	}
	return nil
}

// lives makes the error of a request that takes a running container final where the container has ended. Nobody has
// asked for that.
func (c *container) lives(ctx context.Context, err error) error {
	if status.Code(err) != codes.FailedPrecondition {
		return err
	}
	st, look := c.status(ctx)
	if look == nil && st.State == cri.ContainerState_CONTAINER_EXITED {
		return final{fmt.Errorf("it has ended by itself: exit code %d, %s %s, it ran from %v to %v: %w", st.ExitCode,
			st.Reason, st.Message, time.Unix(0, st.StartedAt), time.Unix(0, st.FinishedAt), err)}
	}
	return err
}

// finish has the container end, and looks whether its exit code and its log are what they must be.
func (c *container) finish() error {
	c.l.pause()
	if c.log.how != ends {
		err := c.l.repeat("stop container "+c.id, func(ctx context.Context) error {
			_, err := c.l.pods.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.id, Timeout: c.grace})
			return err
		})
		if err != nil {
			return err
		}
	}
	var st *cri.ContainerStatus
	err := c.l.repeat("end of "+c.String(), func(ctx context.Context) (err error) {
		if st, err = c.status(ctx); err != nil {
			return err
		}
		if st.State != cri.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("it is %s", st.State)
		}
		return nil
	})
	if errors.As(err, new(final)) {
		c.l.s.report.lose(LostPod, "%s: %v", c, err)
		return nil
	}
	if err != nil {
		return err
	}
	c.judge(st)
	return nil
}

// judge counts what is wrong with how a container ended.
func (c *container) judge(st *cri.ContainerStatus) {
	if st.ExitCode != c.code && !c.obeyed(st) {
		loss := WrongExit
		if st.ExitCode == 255 && st.Reason != "Error" {
			loss = LostExit
		}
		if !c.l.s.history.promisesExit(c.l.id) || c.l.s.history.cutOff(c.id, st.ExitCode) {
			loss = Unpromised
		}
		c.l.s.report.lose(loss, "%s: exit code %d (%s %s), wanted %d", c, st.ExitCode, st.Reason, st.Message, c.code)
	}
	if problem := c.checkLog(); problem != nil {
		loss := problem.loss
		if !c.l.s.history.promisesLog(c.l.id, c.made) ||
			c.l.s.history.cutOff(c.id, st.ExitCode) {
			loss = Unpromised
		}
		c.l.s.report.lose(loss, "%s: %s: %s", c, c.logPath(), problem.text)
		c.keepLog()
	}
}

// obeyed says whether a container that was stopped without grace ended at the signal all the same: CRI-O sends that
// before it kills.
func (c *container) obeyed(st *cri.ContainerStatus) bool {
	return c.l.s.Peer == CRIO && c.log.how == isKilled && st.ExitCode == obedient
}

// checkLog says what is wrong with the log of a container that has ended. What it wrote has been written to its log by
// the time its end is told; where the disk of the logs hangs it comes when the disk answers.
func (c *container) checkLog() *logProblem {
	for {
		late := c.l.s.history.writesLate() // before it is looked at
		problem := c.log.check(c.logPath())
		if problem == nil || problem.loss != Incomplete || !late {
			return problem
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (c *container) keepLog() {
	as, _ := filepath.Rel(c.l.s.logs, c.logPath())
	c.l.s.keep(c.logPath(), as)
}
