package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/internal/fail"
)

// logsOptions are the flags of berth logs.
type logsOptions struct {
	follow, timestamps, previous, all bool
	tail                              int
	since, until                      string
	out                               admin.Streams
}

func (a *app) logsCommand() *cobra.Command {
	o := &logsOptions{}
	cmd := &cobra.Command{
		Use: "logs CONTAINER|POD", Short: "Print the log of a container", Args: exactly(1),
		Long: "Print the log of a container, or of all containers of a pod, with the name of its container before " +
			"each line. A name that a container and a pod have means the container; --all-containers means the " +
			"pod.\n" +
			"\n" +
			"A time is how long ago (10m, 1h30m), a date (2026-01-31, 2026-01-31T12:00:00Z), or the seconds " +
			"since 1970.",
		Example: examples("berth logs -f --tail 20 web", "berth logs --since 10m --until 5m web",
			"berth logs --previous default/web/nginx",
			"berth logs -f --all-containers web"),
		ValidArgsFunction: a.completeFirst(targets),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "follow the log until the container ends")
	f.BoolVarP(&o.timestamps, "timestamps", "t", false, "print the time of each line")
	o.tail = -1
	f.VarP((*tailValue)(&o.tail), "tail", "n", "only this many `lines` from the end")
	f.StringVar(&o.since, "since", "", "only lines after this `time`")
	f.StringVar(&o.until, "until", "", "only lines before this `time`")
	f.BoolVarP(&o.previous, "previous", "p", false, "print the log of the attempt before this container")
	f.BoolVar(&o.all, "all-containers", false, "print the logs of all containers of the pod")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.out = programStreams(cmd)
		return a.with(func(c *client) error { return c.logs(cmd.Context(), args[0], o) })
	}
	return cmd
}

func (c *client) logs(ctx context.Context, word string, o *logsOptions) error {
	n, err := c.survey(ctx)
	if err != nil {
		return err
	}
	var ids []string
	id, err := pick(kindContainer, word, n.containerSubjects())
	if pod, podErr := pick(kindPod, word, n.podSubjects()); podErr == nil && (o.all || err != nil && !isAmbiguous(err)) {
		ids, err = n.currentOf(pod), nil
	} else if err == nil {
		ids = []string{id}
	}
	if err != nil {
		return err
	}
	now := time.Now()
	since, err := parseMoment(o.since, now)
	if err != nil {
		return err
	}
	until, err := parseMoment(o.until, now)
	if err != nil {
		return err
	}
	if o.follow && !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until.Add(watchPoll)) // who follows has seen all of it by then
		defer cancel()
	}
	readers := make([]func() error, len(ids))
	var lock sync.Mutex // held while a line is written, since several containers may say something at once
	for i, id := range ids {
		r := &logReader{out: &lockedWriter{&lock, o.out.Out}, err: &lockedWriter{&lock, o.out.Err}, timestamps: o.timestamps,
			tail: o.tail, since: since, until: until}
		if len(ids) > 1 {
			r.prefix = visibleLine(n.containerOf(id).GetMetadata().GetName()) + " "
		}
		readers[i] = func() error { return readLog(ctx, c, n, id, r, o) }
	}
	return eachLog(readers, o.follow)
}

// eachLog reads logs one after another, or all at once where each goes on.
func eachLog(readers []func() error, atOnce bool) error {
	failed := make([]error, len(readers))
	var all sync.WaitGroup
	for i, read := range readers {
		if !atOnce {
			failed[i] = read()
			continue
		}
		all.Go(func() { failed[i] = read() })
	}
	all.Wait()
	return errors.Join(failed...)
}

// currentOf are the containers of a pod, the oldest first, without those in whose place others were started.
func (n *node) currentOf(pod string) (ids []string) {
	var all []subject
	for _, s := range n.containerSubjects() {
		if n.containerOf(s.id).GetPodSandboxId() == pod {
			all = append(all, s)
		}
	}
	for _, s := range newest(all) {
		ids = append(ids, s.id)
	}
	slices.Reverse(ids)
	return ids
}

// previousOf is the container in whose place this one was started: the attempt before, also in another sandbox of its
// pod.
func (n *node) previousOf(id string) (found string) {
	of := n.containerOf(id)
	pod, most := n.pod(of.GetPodSandboxId()).GetMetadata(), int64(-1)
	for _, c := range n.containers {
		m, p := c.GetMetadata(), n.pod(c.GetPodSandboxId()).GetMetadata()
		same := p.GetUid() == pod.GetUid() && p.GetName() == pod.GetName() && p.GetNamespace() == pod.GetNamespace()
		if attempt := int64(m.GetAttempt()); same && m.GetName() == of.GetMetadata().GetName() &&
			attempt < int64(of.GetMetadata().GetAttempt()) && attempt > most {
			found, most = c.GetId(), attempt
		}
	}
	return found
}

// readLog prints the log of one container, or that of the one before.
func readLog(ctx context.Context, c *client, n *node, id string, r *logReader, o *logsOptions) error {
	if o.previous {
		before := n.previousOf(id)
		if before == "" {
			return fail.New(errdefs.ErrNotFound, "there was no container before %s, or it was removed", short(id))
		}
		id = before
	}
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return err
	}
	if r.path = resp.GetStatus().GetLogPath(); r.path == "" {
		return fmt.Errorf("container %s keeps no log: it was made without a log directory", short(id))
	}
	if o.follow {
		r.ended = c.watch(id).ended
	}
	err = r.copy(ctx)
	if absent(err) && resp.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil // nothing was printed yet
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil // the time of --until came while the daemon was asked whether the container still runs
	}
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	return nil
}

// lockedWriter lets several write, one at a time.
type lockedWriter struct {
	lock *sync.Mutex
	w    io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.w.Write(p)
}

// watch looks at one container until it has ended. A daemon that restarts meanwhile is waited for.
type watch struct {
	c      *client
	id     string
	asked  time.Time
	silent time.Time // since when no daemon answers
	status *runtimeapi.ContainerStatus
}

const (
	watchPoll = 100 * time.Millisecond
	// mostSilence is how long a daemon may take to come back.
	mostSilence = 30 * time.Second
)

func (c *client) watch(id string) *watch { return &watch{c: c, id: id} }

// ended reports whether the container has ended; then status tells how. One that was removed has ended, with no status.
func (w *watch) ended(ctx context.Context) (bool, error) {
	if time.Since(w.asked) < watchPoll {
		return false, nil
	}
	w.asked = time.Now()
	resp, err := w.c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: w.id})
	switch {
	case err == nil:
		w.silent = time.Time{}
		w.status = resp.GetStatus()
		return w.status.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED, nil
	case ctx.Err() != nil:
		return false, nil
	case isCode(err, codes.NotFound):
		w.status = nil
		return true, nil
	case isCode(err, codes.Unavailable):
		if w.silent.IsZero() {
			w.silent = time.Now()
		}
		if time.Since(w.silent) < mostSilence {
			return false, nil
		}
	}
	return false, err
}

// wait returns when the container has ended, or with ctx.
func (w *watch) wait(ctx context.Context) error {
	for {
		if done, err := w.ended(ctx); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchPoll / 2):
		}
	}
}

// tailValue is a number of lines, or all of them, which is -1.
type tailValue int

const allLines = "all"

func (v *tailValue) Type() string { return "lines" }

func (v *tailValue) String() string {
	if *v < 0 {
		return allLines
	}
	return strconv.Itoa(int(*v))
}

// Set reads a number, or all.
func (v *tailValue) Set(s string) error {
	if s == allLines {
		s = "-1"
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return errors.New("want a number of lines, or all")
	}
	*v = tailValue(n)
	return nil
}
