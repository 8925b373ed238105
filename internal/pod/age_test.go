package pod

import (
	"errors"
	"testing"
	"time"

	"berth/internal/sandbox"
)

// TestNewestAttemptAfterTheClockWasSetBack has a sandbox and its container be made an hour ahead of the clock. A
// kubelet takes for the last attempt of each what was created last: what comes after them is, and all else has the time
// of the clock.
func TestNewestAttemptAfterTheClockWasSetBack(t *testing.T) {
	b := open(t)
	first, ctr := started(t, b)
	ahead := time.Now().Add(time.Hour)
	p, err := b.Catalog.find(first)
	if err == nil {
		err = p.publish("test", func(r *sandbox.Record) error {
			r.CreatedAt = ahead
			return r.Edit(ctr, func(c *sandbox.Container) error { c.CreatedAt = ahead.Add(time.Minute); return nil })
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	create := func(pod sandbox.ID, name string, attempt uint32) *sandbox.Container {
		t.Helper()
		cfg := containerConfig(name)
		cfg.Metadata.Attempt = attempt
		id, err := b.Create(t.Context(), pod, cfg)
		if err == nil {
			err = b.Start(t.Context(), id)
		}
		_, c, e := b.Catalog.GetContainer(id)
		if err = errors.Join(err, e); err != nil {
			t.Fatal(err)
		}
		if c.StartedAt.After(time.Now()) {
			t.Errorf("container %s was started at %v", name, c.StartedAt)
		}
		return c
	}
	run := func(name string, attempt uint32) *sandbox.Record {
		t.Helper()
		cfg := podConfig(name)
		cfg.Metadata.Attempt = attempt
		id, err := b.Run(t.Context(), cfg, "")
		r, e := b.Catalog.Get(id)
		if err = errors.Join(err, e); err != nil {
			t.Fatal(err)
		}
		return r
	}
	second := create(first, "c", 1)
	if at := second.CreatedAt.UnixNano(); at != ahead.Add(time.Minute).UnixNano()+1 {
		t.Errorf("the next attempt of the container was created at %v", second.CreatedAt)
	}
	if c := create(first, "d", 0); c.CreatedAt.After(time.Now()) {
		t.Errorf("another container was created at %v", c.CreatedAt)
	}
	if err := b.Stop(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	next := run("a", 1)
	if at := next.CreatedAt.UnixNano(); at != ahead.UnixNano()+1 {
		t.Errorf("the next sandbox was created at %v", next.CreatedAt)
	}
	if c := create(next.ID, "c", 2); !c.CreatedAt.After(second.CreatedAt) {
		t.Errorf("the container's attempt in it was created at %v", c.CreatedAt)
	}
	if r := run("b", 0); r.CreatedAt.After(time.Now()) {
		t.Errorf("another pod was created at %v", r.CreatedAt)
	}
}
