package runtime

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	"berth/internal/pipe"
)

// outlet is a pipe through which a process writes to a caller.
type outlet struct {
	theirs *os.File // the process's end
	ours   *os.File
	copied sync.WaitGroup
	err    error // of reading or delivering; read it after copied.Wait
}

// newOutlet begins to bring what is written to theirs to w.
func newOutlet(w io.Writer) (*outlet, error) {
	r, p, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	o := &outlet{theirs: p, ours: r}
	o.copied.Go(func() { _, o.err = pipe.Copy(w, r) })
	return o, nil
}

// finish delivers what comes until the stream ends or the deadline. It returns the daemon's end if a process still
// holds the other one then, else nil.
func (o *outlet) finish(deadline time.Time) (held *os.File, err error) {
	_ = o.theirs.Close()
	_ = o.ours.SetReadDeadline(deadline)
	o.copied.Wait()
	if hasWriter(o.ours) {
		return o.ours, o.err
	}
	_ = o.ours.Close()
	return nil, o.err
}

// hasWriter reports whether anything can still be written to a pipe, by its reading end.
func hasWriter(f *os.File) bool {
	rc, err := f.SyscallConn()
	if err != nil {
		return false
	}
	polled := []unix.PollFd{{Events: unix.POLLIN}}
	err = rc.Control(func(fd uintptr) {
		polled[0].Fd = int32(fd)
		_, err = unix.Poll(polled, 0)
	})
	return err == nil && polled[0].Revents&unix.POLLHUP == 0
}

// drainer has the pods' monitors drain streams that no client reads any more.
type drainer struct {
	call func(ctx context.Context, pod string, q wire.Request, fds ...*os.File) (*wire.Reply, error)
	own  chan struct{} // has an entry for each stream that the daemon drains itself
	log  *slog.Logger
}

func newDrainer(r *Runtime) *drainer {
	return &drainer{call: r.call, own: make(chan struct{}, maxDrained), log: r.cfg.Log}
}

// maxDrained is how many streams the daemon drains itself, over all pods: those of monitors of an earlier release,
// which do not know how, and of monitors that do not answer.
const maxDrained = 128

// take gives streams to the pod's monitor, which reads them and throws away what comes as long as a process holds their
// other ends. A process that an exec has left can go on writing that way, also while no daemon lives. It closes the
// streams.
func (d *drainer) take(ctx context.Context, pod, ctr string, streams ...*os.File) {
	var given []*os.File
	for _, s := range streams {
		if s == nil {
			continue
		}
		if f, err := duplicate(s); err == nil { // a file that is sent becomes blocking; this one is for that
			given = append(given, f)
		}
		_ = s.Close()
	}
	if len(given) == 0 {
		return
	}
	reply, err := d.call(context.WithoutCancel(ctx), pod, wire.Request{Op: wire.Drain, Container: ctr}, given...)
	if err == nil {
		closeFiles(given)
		if reply.Full {
			d.refused(pod, ctr)
		}
		return
	}
	for _, f := range given {
		select {
		case d.own <- struct{}{}:
			go func() {
				_, _ = io.Copy(io.Discard, f)
				_ = f.Close()
				<-d.own
			}()
		default:
			_ = f.Close()
			d.refused(pod, ctr)
		}
	}
}

func (d *drainer) refused(pod, ctr string) {
	d.log.Warn("processes that execs have left hold too many streams open; the last of them are not read any more, "+
		"and a process that writes to it gets SIGPIPE", "pod", pod, "container", ctr, "most", maxDrained)
}

// duplicate is another descriptor of the same pipe.
func duplicate(f *os.File) (*os.File, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	if err := rc.Control(func(u uintptr) { fd, dupErr = unix.FcntlInt(u, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("fcntl", dupErr)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
