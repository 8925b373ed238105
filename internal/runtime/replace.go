package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
	"berth/internal/process"
)

// Why a monitor is replaced, as metrics have it.
const (
	ReplacedSilent = "silent" // it answered nothing for a while
	ReplacedStop   = "stop"   // a stop needed it
)

// mostReplaced is how many monitors of the node are replaced at a time: what has many of them hang is more likely the
// node's own trouble than theirs.
const mostReplaced = 2

// replacements are what is known of monitors that were replaced because they hung.
type replacements struct {
	slots chan struct{}

	mu     sync.Mutex // guards what follows
	counts map[string]int
}

func newReplacements() *replacements {
	return &replacements{
		slots: make(chan struct{}, mostReplaced), counts: map[string]int{ReplacedSilent: 0, ReplacedStop: 0},
	}
}

func (r *replacements) count(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[why]++
}

func (r *replacements) all() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// Monitors is how the node's monitors are.
type Monitors struct {
	Joined   int // to which the daemon is connected
	Silent   []Silent
	Replaced map[string]int // how many were, by why, since the daemon began
}

// Silent is a monitor that does not answer.
type Silent struct {
	Pod   string
	Since time.Time
	What  string // in words
}

// Monitors says which monitors do not answer, and how many were replaced for that. It never waits.
func (r *Runtime) Monitors() Monitors {
	m := Monitors{Replaced: r.links.changes.all()}
	for _, l := range r.links.list() {
		if l.live() != nil {
			m.Joined++
		}
		since, held := l.silence.lasts()
		if since.IsZero() {
			continue
		}
		what := "the pod's monitor has answered nothing since " + since.UTC().Format(time.RFC3339) + ": "
		if held != "" {
			what += "it is " + held + ", and waited for; its exits and logs wait with it"
		} else {
			what += "it is replaced when a stop needs it, or after " + (hangTicks * tick(l.cfg)).String()
		}
		m.Silent = append(m.Silent, Silent{Pod: l.pod, Since: since, What: what})
	}
	return m
}

// hangTicks is after how many ticks without an answer a monitor is replaced, and pingTicks after how many it is asked
// once more.
const hangTicks, pingTicks = 30, 5

func tick(cfg *Config) time.Duration {
	if cfg.Tick > 0 {
		return cfg.Tick
	}
	return time.Second
}

// A monitor that has said nothing for quietTime is asked whether it is there. Who is so is looked at every lookPause: a
// monitor with probes to run is never asked, and one without costs some 0.1 ms in quietTime.
const quietTime, lookPause = 5 * time.Minute, time.Minute

// Watch asks monitors that have said nothing for long whether they are there, and holds what the daemon could not hold
// of their containers before, until ctx ends.
func (r *Runtime) Watch(ctx context.Context) {
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, l := range r.links.list() {
			lookAt(ctx, l)
		}
	}
}

// lookAt does what Watch does, for one pod.
func lookAt(ctx context.Context, l *link) {
	c := l.live()
	switch {
	case c == nil || ctx.Err() != nil:
	case l.handles.lack():
		holdAgain(ctx, l, c)
	case c.quietFor() >= quietTime:
		_ = c.ping(ctx)
	}
}

// ping asks the monitor whether it is there.
func (c *client) ping(ctx context.Context) error {
	_, err := c.quick(ctx, wire.Request{Op: wire.Hello, Version: wire.Version})
	return err
}

// While a monitor works on what may take long, it is asked after firstCompany, and then every nextCompany, whether it
// is there.
const firstCompany, nextCompany = 10 * time.Second, time.Minute

// company keeps asking a monitor that works on something whether it is there, until stop is called.
func (c *client) company(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(firstCompany, func() {
		for ctx.Err() == nil && !c.lost() {
			_ = c.ping(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(nextCompany):
			}
		}
	})
	return func() { timer.Stop(); cancel() }
}

// watch counts the ticks in which the pod's monitor answers nothing, and replaces one that hangs.
func watch(l *link) {
	ticker := time.NewTicker(tick(l.cfg))
	defer ticker.Stop()
	var pinging sync.WaitGroup
	defer pinging.Wait()
	next, pause := 0, 1 // after a try that failed, in ticks
	for n := 0; !l.silence.rest(); n++ {
		select {
		case <-l.done:
			return
		case <-ticker.C:
		}
		if n%pingTicks == 0 {
			pinging.Wait() // the last one took as long as it may
			pinging.Go(func() { ping(l) })
		}
		c := l.live()
		if l.silence.tick(held(l)) < hangTicks || n < next {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := l.replace(ctx, c, ReplacedSilent); err != nil {
			l.cfg.Log.Error("a pod's monitor hangs and could not be replaced; it is tried again", "pod", l.pod, "error", err)
			next, pause = n+pause, min(2*pause, hangTicks)
		}
		cancel()
	}
}

// ping asks the monitor once more, over a new connection where there is none.
func ping(l *link) {
	ctx, cancel := context.WithTimeout(context.Background(), quickTimeout)
	defer cancel()
	if c := l.live(); c != nil {
		_ = c.ping(ctx)
		return
	}
	if list, err := l.connect(ctx); err == nil {
		l.tellAll(list)
	}
}

// held says by what the pod's monitor is kept from running on purpose, "" when by nothing.
func held(l *link) string {
	pids, _ := l.cfg.monitorGroup(l.pod).Pids()
	for _, pid := range pids {
		if held := process.Held(pid); held != "" {
			return held
		}
	}
	return ""
}

// errReplaced is the end of what is asked of a monitor that hangs.
var errReplaced = errors.New("the pod's monitor hangs, and another one takes its place")

// replace kills the pod's monitor, to which c is the connection or nil, and has another one take over. Where there is
// another one already, it does nothing. Where none can be started, it is tried on. A monitor that was killed before,
// and cannot end because it waits in the kernel, takes no place from those of other pods.
func (l *link) replace(ctx context.Context, c *client, why string) error {
	l.hasten(errReplaced)
	ctx, release, err := l.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	if now := l.live(); now != nil && now != c {
		return nil
	}
	if !l.doomed.Load() {
		select {
		case l.changes.slots <- struct{}{}:
			defer func() { <-l.changes.slots }()
		case <-ctx.Done():
			return fmt.Errorf("replace the monitor of pod %s: %d others are being replaced: %w",
				l.pod, mostReplaced, context.Cause(ctx))
		}
	}
	group := l.cfg.monitorGroup(l.pod)
	pids, _ := group.Pids()
	was := describe(pids)
	left := leave(l)
	l.abandon(c)
	kill, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	err = end(kill, group)
	left.record() // also where it is there still: it does nothing more, and who asks next may find no zombie
	if err != nil {
		l.doomed.Store(true)
		go l.succeed()
		return fmt.Errorf("the monitor of pod %s was killed and is still there: %s: %w", l.pod, describe(pids), err)
	}
	l.reap()
	l.changes.count(why)
	l.cfg.Log.Warn("a pod's monitor did not answer and was killed; another one takes over",
		"pod", l.pod, "why", why, "it", was)
	list, err := l.establish(ctx)
	if err != nil {
		go l.succeed()
		return err
	}
	l.tellAll(list)
	return nil
}

// describe says what processes do.
func describe(pids []int) string {
	var all []string
	for _, pid := range pids {
		start, _ := process.Start(pid)
		all = append(all, process.Describe(pid, start))
	}
	if len(all) == 0 {
		return "it had no process"
	}
	return strings.Join(all, ", ")
}

// left is what is kept of a pod's containers from a monitor that is about to be killed: what its death would lose.
type left struct {
	ended map[string]wire.Exit // by exit file: of those that have ended and not been seen to
}

// leave keeps hold of what a pod's containers have left. What the daemon does not hold of a container yet, it gets.
func leave(l *link) *left {
	c, pod, handles := l.cfg, l.pod, l.handles
	k := &left{ended: map[string]wire.Exit{}}
	dirs, _ := filepath.Glob(filepath.Join(c.dir(pod), "c", "*"))
	for _, dir := range dirs {
		ctr := filepath.Base(dir)
		p, err := c.processOf(pod, ctr)
		if err != nil {
			continue
		}
		b, err := c.bundleOf(pod, ctr)
		if !handles.has(ctr) {
			h, lack := openHandle(dir, p, b.Stdin && b.StdinOnce && !b.StdinClosed && !b.Terminal)
			if b.Terminal && process.Alive(p.PID, p.StartTime) {
				h.console = takeMaster(l, ctr, p)
			}
			keep(l, ctr, h, lack)
		}
		if status, ok := process.Ending(p.PID, p.StartTime, nil); ok && err == nil && b.Sandbox == "" {
			e := exitFrom(p, status)
			e.StartedAt, e.Draining = b.Started, true
			k.ended[filepath.Join(dir, exitFile)] = e
		}
	}
	return k
}

// record writes down the exits that the monitor has not, for the one that takes over.
func (k *left) record() {
	for path, e := range k.ended {
		if _, err := os.Lstat(path); err == nil {
			continue
		}
		if err := os.WriteFile(path+".next", wire.Encode(&e), 0o600); err == nil {
			_ = os.Rename(path+".next", path)
		}
	}
}

// exitFrom is the exit that a wait status tells.
func exitFrom(p Process, status unix.WaitStatus) wire.Exit {
	e := wire.Exit{Process: p, FinishedAt: time.Now().UnixNano()}
	if status.Signaled() {
		e.Signal, e.Code = int(status.Signal()), 128+int32(status.Signal())
	} else {
		e.Code = int32(status.ExitStatus())
	}
	return e
}
