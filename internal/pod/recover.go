package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/op"
	"berth/internal/runtime"
)

// Open reads every record below the root. What it returns can be read at once; Recover finds out what still runs. One bad
// record never stops the others: it is a problem that Problems reports, and its id stays taken.
func Open(cfg Config) (*Pods, error) {
	if cfg.Abandon == 0 {
		cfg.Abandon = 2 * time.Minute
	}
	if cfg.CreateTimeout == 0 {
		cfg.CreateTimeout = 2 * time.Minute
	}
	if cfg.Retry == (op.Backoff{}) {
		cfg.Retry = op.Backoff{First: time.Second, Max: time.Minute}
	}
	s := &Pods{cfg: cfg}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.freshState(); err != nil {
		return nil, err
	}
	x := (&index{}).clone()
	x.pods, x.names, x.containers, x.damaged = map[ID]*pod{}, map[string]*pod{}, map[ID]*pod{}, map[ID]error{}
	entries, err := os.ReadDir(cfg.podsRoot())
	if err != nil {
		return nil, fmt.Errorf("read the pods' records: %w", err)
	}
	for _, e := range entries {
		if id := ID(e.Name()); id.Valid() {
			s.load(x, id)
		}
	}
	s.index.Store(x)
	return s, nil
}

// freshState makes the directories and throws away the state of another boot: where it is kept on a disk it outlives what
// it describes.
func (s *Pods) freshState() error {
	l := &s.cfg.Layout
	mark := filepath.Join(l.State, "boot")
	if was, err := os.ReadFile(mark); err == nil && string(was) != s.cfg.Boot {
		for _, dir := range []string{l.podsState(), filepath.Join(l.State, "runtime")} {
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("clear the state of an earlier boot: %w", err)
			}
		}
	}
	for _, dir := range []string{l.podsRoot(), l.podsState()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	return os.WriteFile(mark, []byte(s.cfg.Boot), 0o600)
}

// load takes one pod into the index.
func (s *Pods) load(x *index, id ID) {
	r := &Record{}
	_, err := recordKind.Read(s.cfg.record(id), r)
	if err == nil && r.ID != id {
		err = fmt.Errorf("record %s speaks of pod %s", s.cfg.record(id), r.ID)
	}
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.RemoveAll(s.cfg.pod(id)) // cut off before its first record: nothing else can have been made
		return
	}
	if err != nil {
		x.damaged[id] = err
		s.cfg.Log.Error("a pod's record cannot be used; what is named after the pod is left alone", "pod", id, "error", err)
		return
	}
	p := &pod{s: s, id: id, containers: map[ID]*container{}, adopted: make(chan struct{})}
	p.rec.Store(r)
	x.pods[id] = p
	if r.State != Removing {
		x.names[nameKey(r.Config.Get().GetMetadata())] = p
	}
	for _, c := range r.Containers {
		live := newContainer()
		if c.State == Exited || c.State == Removing {
			live.markExited()
		}
		p.containers[c.ID], x.containers[c.ID] = live, p
	}
}

// Recover adopts what runs, finishes or undoes what was under way, and then sweeps away what no record owns. It goes on
// behind the requests: one for a pod that is not adopted yet waits for that pod alone. done is closed when every pod is
// adopted.
func (s *Pods) Recover() (done <-chan struct{}) {
	adopted := make(chan struct{})
	s.background(func(ctx context.Context) {
		var g errgroup.Group
		g.SetLimit(16)
		for _, p := range s.index.Load().pods {
			g.Go(func() error {
				_ = p.lane.Do(s.ctx, ctx, op.Op{Kind: opAdopt, Run: p.adopt})
				s.background(func(ctx context.Context) { p.resume(ctx) })
				return nil
			})
		}
		_ = g.Wait()
		close(adopted)
		s.sweep(ctx)
	})
	return adopted
}

// adopt finds out what of a pod still lives. It runs in the pod's lane.
func (p *pod) adopt(ctx context.Context) error {
	select {
	case <-p.adopted:
		return nil // a pod made by this daemon
	default:
	}
	defer close(p.adopted)
	r := p.rec.Load()
	if r.Boot != p.s.cfg.Boot {
		return p.rebooted(r)
	}
	if r.State != Ready && r.State != Stopping {
		return nil
	}
	inv, err := p.s.cfg.Runtime.Adopt(ctx, string(p.id))
	if err != nil {
		p.s.cfg.Log.Error("a pod's monitor could not be adopted: its containers run on, unwatched; it is tried again", "pod", p.id, "error", err)
		p.s.retry(func() error {
			inv, err := p.s.cfg.Runtime.Adopt(p.s.ctx, string(p.id))
			if err == nil {
				p.takeInventory(inv)
			}
			return err
		}, func() {})
		return err
	}
	p.takeInventory(inv)
	return nil
}

// takeInventory brings the record up to what the monitor says.
func (p *pod) takeInventory(inv runtime.Inventory) {
	for _, c := range p.rec.Load().Containers {
		if !c.live() {
			continue
		}
		found, ok := inv.Containers[string(c.ID)]
		switch {
		case !ok || found.State == runtime.Exited && found.Exit == nil:
			p.markExited(c.ID, func(c *Container) { fillExit(c, runtime.Exit{Unknown: true}) })
		case found.State == runtime.Exited:
			p.markExited(c.ID, func(c *Container) { fillExit(c, *found.Exit) })
		case found.State == runtime.Running && c.State != Running:
			p.foundRunning(c.ID)
		}
	}
}

// foundRunning finishes a start that the last daemon did not live to record.
func (p *pod) foundRunning(id ID) {
	_ = p.settle("container.running", func(r *Record) error {
		return r.edit(id, func(c *Container) error {
			if c.State == Created {
				if err := c.moveTo(Starting); err != nil {
					return err
				}
			}
			c.StartedAt = time.Now()
			return c.moveTo(Running)
		})
	})
}

// rebooted marks what lived in another boot as ended: exits that a monitor wrote to the disk in time are exact.
func (p *pod) rebooted(r *Record) error {
	for _, c := range r.Containers {
		if !c.live() {
			continue
		}
		e, err := runtime.ReadExit(p.s.cfg.exit(p.id, c.ID))
		if err != nil {
			e = runtime.Exit{Unknown: true, FinishedAt: time.Now()}
		}
		p.markExited(c.ID, func(c *Container) {
			fillExit(c, e)
			if e.Unknown {
				c.Message = "the node was restarted while the container ran"
			}
		})
	}
	return p.settle("pod.rebooted", func(r *Record) error {
		r.Boot = p.s.cfg.Boot
		if r.State == Ready {
			return r.moveTo(Stopping)
		}
		return nil
	})
}

// resume finishes what was under way when the last daemon ended.
func (p *pod) resume(ctx context.Context) {
	r := p.rec.Load()
	switch r.State {
	case Creating, Removing:
		_ = p.s.Remove(ctx, p.id)
		return
	case Stopping:
		_ = p.s.Stop(ctx, p.id)
	case Ready:
		if why := p.broken(r); why != nil {
			p.s.cfg.Log.Warn("a pod has lost what it stands on and is stopped", "pod", p.id, "error", why)
			_ = p.s.Stop(ctx, p.id)
		}
	}
	for _, c := range p.rec.Load().Containers {
		switch c.State {
		case Creating, Removing:
			_ = p.s.RemoveContainer(ctx, c.ID)
		case Exited:
			if err := p.reapContainer(ctx, c.ID); err != nil {
				p.stuckContainer(c.ID, err, func() error { return p.reapContainer(p.s.ctx, c.ID) })
			}
		}
	}
}

// broken says what a ready pod lacks of the namespaces that it is made of.
func (p *pod) broken(r *Record) error {
	ns := p.namespaces(r)
	for _, pin := range []string{ns.Net, ns.IPC, ns.UTS} {
		if pin == "" {
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(pin, &st); err != nil || st.Type != unix.NSFS_MAGIC {
			return fmt.Errorf("namespace pin %s is gone", pin)
		}
	}
	return nil
}
