package pod

import (
	"context"
	"fmt"

	"berth/internal/sandbox"
)

// limitAdopted limits what the containers of an earlier daemon write, one after another: they are on one file system,
// and where that hangs more than one would only wait beside it. Those of an earlier release have no limit in their
// record: they get what a new container of their pod gets.
func limitAdopted(ctx context.Context, s *Pods) {
	for _, p := range s.Catalog.index.Load().pods {
		for _, c := range p.record().Containers {
			l := p.containers.get(c.ID)
			if ctx.Err() != nil || l == nil || !c.Live() {
				continue
			}
			if err := limitAgain(l, c); err != nil {
				s.cfg.Log.Warn("a container of an earlier daemon may write without its limit; the next start tries again",
					"pod", p.id, "container", c.ID, "error", err)
			}
		}
	}
}

// limitAgain limits a container that runs already.
func limitAgain(l *container, c *sandbox.Container) error {
	if c.Storage == nil {
		s, err := l.bundle.StorageLimit(l.p.record())
		if err != nil {
			return fmt.Errorf("find its limit: %w", err)
		}
		err = l.p.publish("container.storage", func(r *sandbox.Record) error {
			return r.Edit(c.ID, func(c *sandbox.Container) error {
				c.Storage = s
				return nil
			})
		})
		if err != nil {
			return err
		}
		c = l.p.record().Container(c.ID)
	}
	if c == nil {
		return nil
	}
	at := l.bundle.Container(l.p.record(), c)
	if err := at.LimitStorage(); err != nil {
		return err
	}
	if now := l.p.record().Container(c.ID); now == nil || !now.Live() { // it is being removed, and may be past that step
		return at.UnlimitStorage()
	}
	return nil
}
