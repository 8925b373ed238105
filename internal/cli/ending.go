package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ending is the end of a container. It is watched beside what shows the output: who reads that may take longer than the
// container stays after its end.
type ending struct {
	done   chan struct{} // closed when the container has ended, or is watched no more; then err and status are set
	err    error
	status *runtimeapi.ContainerStatus // nil where it was removed

	logged chan struct{} // closed later, when it is known whether its log has the output; then log is set
	log    logState
}

// logState is whether the log of a container that has ended has all that is to come into it.
type logState int

const (
	logUnknown    logState = iota // nobody tells: the daemon is of an earlier release, or the container was removed
	logComplete                   // the log has the output, or says what was dropped of it
	logIncomplete                 // the log's disk is full or hangs: neither is in the log yet
)

// errLogLacks is why the log cannot show what came out of a container.
var errLogLacks = errors.New("its log does not have all of it")

// awaitEnd watches a container until ctx ends.
func awaitEnd(ctx context.Context, c *client, id string) *ending {
	e := &ending{done: make(chan struct{}), logged: make(chan struct{})}
	go func() {
		defer close(e.logged)
		w := c.watch(id)
		e.err = w.wait(ctx)
		e.status = w.status
		close(e.done)
		if e.err == nil && e.status != nil {
			e.log = awaitLog(ctx, c, id)
		}
	}()
	return e
}

// awaitLog waits until the log of a container that has ended has its output, for as long as outputGrace: a disk may
// be slow.
func awaitLog(ctx context.Context, c *client, id string) (state logState) {
	ctx, cancel := context.WithTimeout(ctx, outputGrace)
	defer cancel()
	for {
		resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		switch {
		case err == nil:
			state = logStateOf(resp.GetInfo())
			if state != logIncomplete {
				return state
			}
		case !isCode(err, codes.Unavailable): // it was removed, or the time is over
			return state
		}
		select {
		case <-ctx.Done():
			return state
		case <-time.After(watchPoll):
		}
	}
}

// logStateOf reads the verbose status of a container that has ended.
func logStateOf(verbose map[string]string) logState {
	var info struct{ Logged *bool }
	switch err := json.Unmarshal([]byte(verbose["info"]), &info); {
	case err != nil || info.Logged == nil:
		return logUnknown
	case *info.Logged:
		return logComplete
	}
	return logIncomplete
}

// over says that the container has ended, as a logReader asks. Its log is waited for, too.
func (e *ending) over(context.Context) (bool, error) {
	if !isClosed(e.logged) {
		return false, nil
	}
	return true, e.err
}

// lacking is the error of a log that lacks output. Where all depends on the log, one of which nobody tells that it is
// complete lacks some.
func (e *ending) lacking(all bool) error {
	if <-e.logged; e.log == logIncomplete || all && e.log != logComplete {
		return fmt.Errorf("%w: its disk is full or hangs, a process holds the output open, or it was removed", errLogLacks)
	}
	return nil
}
