package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// helloTimeout bounds the first answer of a monitor.
const helloTimeout = 10 * time.Second

// link is what the daemon keeps of one pod: the connection to its monitor, and what the next one will need if that is
// killed.
type link struct {
	cfg     *Config
	pod     string
	turn    chan struct{} // held while connecting
	done    chan struct{} // closed when the pod is shut down
	handles *handles
	silence silence
	changes *replacements // of the whole node
	sooner  chan struct{} // ends a pause of succeed
	doomed  atomic.Bool   // the monitor was killed, and was there still when that was looked at last

	mu        sync.Mutex // guards what follows
	client    *client
	interrupt context.CancelCauseFunc // ends what holds the turn
	gap       chan struct{}           // closed when another monitor was joined, or could not be; nil when no try runs
	child     int                     // the monitor's pid, where it is a child of this process
	succeeds  bool                    // succeed runs
	ended     bool
}

func newLink(cfg *Config, pod string, changes *replacements) *link {
	l := &link{
		cfg: cfg, pod: pod, turn: make(chan struct{}, 1), done: make(chan struct{}), handles: newHandles(), changes: changes,
		sooner: make(chan struct{}, 1),
	}
	l.silence.watch = func() { watch(l) }
	return l
}

// live returns the connection, nil when there is none.
func (l *link) live() *client {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil || l.client.lost() {
		return nil
	}
	return l.client
}

// await returns the connection. While another monitor takes over it waits, as long as a quick call may take.
func (l *link) await(ctx context.Context) *client {
	l.mu.Lock()
	c := l.client
	if c != nil && !c.lost() {
		l.mu.Unlock()
		return c
	}
	if c != nil { // lost will see it in a moment
		l.open()
	}
	gap := l.gap
	l.mu.Unlock()
	if gap == nil {
		return nil
	}
	timer := time.NewTimer(quickTimeout)
	defer timer.Stop()
	select {
	case <-gap:
	case <-timer.C:
	case <-l.done:
	case <-ctx.Done():
	}
	return l.live()
}

// open begins a gap between two monitors. mu is held.
func (l *link) open() {
	if l.gap == nil && !l.ended {
		l.gap = make(chan struct{})
	}
}

// shutGap ends a gap and wakes those that wait for its end. mu is held.
func (l *link) shutGap() {
	if l.gap != nil {
		close(l.gap)
		l.gap = nil
	}
}

// errShutDown ends operations for a pod that has been shut down meanwhile.
var errShutDown = errors.New("the pod has been shut down")

// take waits for the turn. It returns the context for the work, and a function that ends the turn.
func (l *link) take(ctx context.Context) (held context.Context, release func(), err error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("the monitor of pod %s: %w", l.pod, context.Cause(ctx))
	}
	held, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	l.interrupt = cancel
	if l.ended {
		cancel(errShutDown)
	}
	l.mu.Unlock()
	return held, func() { cancel(nil); <-l.turn }, nil
}

// hasten ends what holds the turn, so that the next in line may have it.
func (l *link) hasten(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.interrupt != nil {
		l.interrupt(why)
	}
}

// connect returns what the pod's monitor holds; it starts a monitor when there is none.
func (l *link) connect(ctx context.Context) ([]wire.Container, error) {
	ctx, release, err := l.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if c := l.live(); c != nil {
		return hello(ctx, c)
	}
	return l.establish(ctx)
}

// establish connects to the monitor, and starts one where there is none. The caller has the turn.
func (l *link) establish(ctx context.Context) ([]wire.Container, error) {
	conn, err := dial(l.cfg.dir(l.pod))
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		if err := spawn(ctx, l); err != nil {
			return nil, fmt.Errorf("start the monitor of pod %s: %w", l.pod, err)
		}
		conn, err = dial(l.cfg.dir(l.pod))
	}
	if err != nil {
		if errors.Is(err, unix.EAGAIN) { // it has not taken the last ones
			l.silence.begin()
		}
		return nil, fmt.Errorf("connect to the monitor of pod %s: %w", l.pod, err)
	}
	var c *client
	made := make(chan struct{})
	take := func(r *wire.Reply) { unasked(l, r) }
	c = newClient(conn, &l.silence, take, func() { <-made; l.lost(c) })
	close(made)
	list, err := hello(ctx, c)
	if err != nil {
		c.end()
		return nil, fmt.Errorf("the monitor of pod %s: %w", l.pod, err)
	}
	return list, l.join(ctx, c, list)
}

// join begins to use a connection: it gives the monitor what is held for it, and holds what the monitor has from now
// on. No other request may come before that: the monitor would report a terminal as missing that it has only not been
// given yet.
func (l *link) join(ctx context.Context, c *client, list []wire.Container) error {
	lacks := l.handles.lack()
	for _, e := range list {
		if e.State != wire.Exited {
			if lacks { // what is handed over is to be whole
				hold(ctx, l, c, e)
			}
			handOver(ctx, l, c, e)
			if !lacks {
				hold(ctx, l, c, e)
			}
		}
		tellDropped(l, e.ID, e.Dropped)
	}
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		c.end()
		return fmt.Errorf("pod %s: %w", l.pod, errShutDown)
	}
	l.client = c
	l.shutGap()
	l.mu.Unlock()
	if c.lost() {
		go l.lost(c)
	}
	for _, e := range list { // not before l.client is set: who ends an input later finds this monitor
		if e.State != wire.Exited {
			endInput(ctx, l, c, e)
		}
	}
	return nil
}

// hello subscribes to exits and checks that both sides speak the same protocol.
func hello(ctx context.Context, c *client) ([]wire.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	reply, err := c.call(ctx, wire.Request{Op: wire.Hello, Version: wire.Version, Subscribe: true})
	if err != nil {
		return nil, err
	}
	if reply.Version < wire.Oldest || reply.Version > wire.Version {
		return nil, fmt.Errorf("it speaks protocol version %d, this daemon %d to %d: run the release that started it, or "+
			"end the pod",
			reply.Version, wire.Oldest, wire.Version)
	}
	c.serves(reply.PID)
	return reply.Containers, nil
}

// A monitor that has no room for descriptors is asked once more: it waits for ten seconds until it takes the end of a
// process for unseen. So it is where the daemon has no room to copy them.
const (
	handOverTries = 16
	handOverPause = 500 * time.Millisecond
)

// handOver gives a monitor what it cannot find by name. One that has it already, or needs nothing, passes over it.
func handOver(ctx context.Context, l *link, c *client, e wire.Container) {
	var err error
	for range handOverTries {
		if err = handOverOnce(ctx, l, c, e); !wire.Lacks(err) || ctx.Err() != nil {
			break
		}
		time.Sleep(handOverPause)
	}
	if err != nil {
		l.cfg.Log.Warn("a monitor could not take over a container's process", "pod", l.pod, "container", e.ID, "error", err)
	}
}

func handOverOnce(ctx context.Context, l *link, c *client, e wire.Container) error {
	fds, err := l.handles.lend(e.ID)
	if err != nil {
		return err
	}
	defer closeFiles(fds)
	_, err = c.quick(ctx, wire.Request{Op: wire.Inherit, Container: e.ID}, fds...)
	return err
}

// hold keeps what a monitor that takes over will need of a container. For what cannot be opened just now Watch tries it
// again.
func hold(ctx context.Context, l *link, c *client, e wire.Container) {
	if l.handles.has(e.ID) {
		return
	}
	h, err := openHandle(l.cfg.bundle(l.pod, e.ID), e.Process, e.StdinOnce && !e.Terminal)
	if e.Dropped != nil {
		h.dropped = *e.Dropped
	}
	if e.Terminal {
		var consoleErr error
		h.console, consoleErr = askConsole(ctx, c, e.ID)
		if wire.Lacks(consoleErr) || errors.Is(consoleErr, errNoMonitor) {
			h.lacks, err = true, errors.Join(err, consoleErr)
		}
	}
	keep(l, e.ID, h, err)
}

// holdAgain holds what could not be held of a pod's containers, and gives the monitor what it may wait for.
func holdAgain(ctx context.Context, l *link, c *client) {
	reply, err := c.quick(ctx, wire.Request{Op: wire.Hello, Version: wire.Version})
	if err != nil {
		return // it is replaced if that goes on
	}
	for _, e := range reply.Containers {
		if e.State != wire.Exited {
			hold(ctx, l, c, e)
			_ = handOverOnce(ctx, l, c, e)
		}
	}
}

// keep adds a handle, and tells what the node lacked to open all of it.
func keep(l *link, ctr string, h handle, err error) {
	l.handles.add(ctr, h)
	if err != nil {
		l.cfg.Log.Warn("the daemon cannot hold what a container would lose if its monitor were killed now; it is tried "+
			"again each minute", "pod", l.pod, "container", ctr, "error", err)
	}
}

// unasked takes messages of the monitor that are no answers.
func unasked(l *link, r *wire.Reply) {
	tellDropped(l, r.Container, r.Dropped)
	if r.Exit != nil {
		l.exited(r.Container, r.Exit)
	}
}

// tellDropped tells what was dropped of a container's log since the last time, but not what was dropped before the
// daemon began.
func tellDropped(l *link, ctr string, all *wire.Dropped) {
	if all == nil || l.cfg.OnDropped == nil {
		return
	}
	if d := l.handles.dropped(ctr, *all); d.Bytes > 0 {
		l.cfg.OnDropped(l.pod, ctr, d)
	}
}

// exited tells of an exit, once.
func (l *link) exited(ctr string, e *wire.Exit) {
	if l.handles.report(ctr) {
		l.cfg.OnExit(l.pod, ctr, *exitOf(e))
	}
}

// abandon gives up a connection whose monitor is about to be killed. Later calls wait for the next monitor. Those whose
// streams end with this one have to be told that it was killed, so the connection counts as lost and not as ended.
func (l *link) abandon(c *client) {
	l.mu.Lock()
	if l.client == c {
		l.client = nil
	}
	l.open()
	l.mu.Unlock()
	if c != nil {
		_ = c.conn.Close()
	}
}

// The pauses between tries to start another monitor for a pod whose monitor was killed.
const firstPause, maxPause = 100 * time.Millisecond, 10 * time.Second

// lost starts another monitor for a pod whose monitor was killed: its containers go on meanwhile.
func (l *link) lost(c *client) {
	l.mu.Lock()
	ours := l.client == c && !l.ended
	if ours {
		l.client = nil
		l.open()
	}
	l.mu.Unlock()
	if !ours {
		return
	}
	l.cfg.Log.Warn("a pod's monitor was lost; another one takes over", "pod", l.pod)
	l.succeed()
}

// succeed finds or starts a monitor that takes over, and tries it until there is one or the pod is shut down. Where
// that is being done already it is tried at once.
func (l *link) succeed() {
	l.mu.Lock()
	already := l.succeeds
	l.succeeds = true
	l.mu.Unlock()
	if already {
		select {
		case l.sooner <- struct{}{}:
		default:
		}
		return
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := l.recover()
		if succeeded(l, err) {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-l.done:
			timer.Stop()
			return
		case <-l.sooner:
			timer.Stop()
		case <-timer.C:
			l.cfg.Log.Error("no monitor can take over: the pod's containers run on, unwatched; it is tried again", "pod", l.pod,
				"error", err)
		}
	}
}

// succeeded ends succeed, unless err says that there is no monitor, or the one that was found was lost again meanwhile.
func succeeded(l *link, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shutGap()
	l.succeeds = err != nil || l.client == nil && !l.ended
	return !l.succeeds
}

// recover finds or starts the monitor that takes over, and tells of the exits meanwhile.
func (l *link) recover() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := l.connect(ctx)
	if err == nil {
		l.tellAll(list)
	}
	return err
}

// tellAll tells of the exits in an inventory.
func (l *link) tellAll(list []wire.Container) {
	for _, e := range list {
		if e.State == wire.Exited && e.Exit != nil {
			l.exited(e.ID, e.Exit)
		}
	}
}

// shut closes the link for further use, and returns its connection if there is one.
func (l *link) shut() *client {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		close(l.done)
		l.shutGap()
	}
	if l.interrupt != nil {
		l.interrupt(errShutDown)
	}
	l.handles.close()
	return l.client
}

// bore notes the monitor that was started, unless the pod was shut down meanwhile.
func (l *link) bore(pid int) (wanted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.child = pid
	l.doomed.Store(false)
	return !l.ended
}

// reapTime is how long the status of a monitor that was seen to end may take. Of one that is traced the tracer is told
// first, and takes it when it likes.
const reapTime = time.Second

// reap takes the status of a monitor that has ended or is about to, where it was a child of this process. It does not
// wait for it for long.
func (l *link) reap() {
	l.mu.Lock()
	pid := l.child
	l.child = 0
	l.mu.Unlock()
	if pid == 0 {
		return
	}
	if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); got > 0 || err == unix.ECHILD {
		return
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		for {
			if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
				return
			}
		}
	}()
	select {
	case <-reaped:
	case <-time.After(reapTime):
	}
}
