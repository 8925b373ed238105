package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (a *app) logsCommand() *cobra.Command {
	var follow, timestamps bool
	var tail int
	cmd := &cobra.Command{
		Use: "logs CONTAINER", Short: "Print what a container printed", Args: exactly(1), Example: examples("berth logs -f --tail 20 web"),
		ValidArgsFunction: a.completeFirst(containers),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the container ends")
	cmd.Flags().BoolVarP(&timestamps, "timestamps", "t", false, "with the time of each line")
	cmd.Flags().IntVar(&tail, "tail", -1, "only that many last `lines`")
	cmd.Flags().Lookup("tail").DefValue = "all"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			program := programStreams(cmd)
			r := &logReader{out: program.Out, err: program.Err, timestamps: timestamps, tail: tail}
			return c.logs(cmd.Context(), args[0], r, follow)
		})
	}
	return cmd
}

func (c *client) logs(ctx context.Context, word string, r *logReader, follow bool) error {
	id, err := c.container(ctx, word)
	if err != nil {
		return err
	}
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return err
	}
	if r.path = resp.GetStatus().GetLogPath(); r.path == "" {
		return fmt.Errorf("container %s keeps no log: it was made without a log directory", short(id))
	}
	if follow {
		r.ended = c.watch(id).ended
	}
	err = r.copy(ctx)
	if absent(err) && resp.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil // nothing was printed yet
	}
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	return nil
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

// ended says whether the container has ended; then status tells how. One that was removed has ended, with no status.
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
