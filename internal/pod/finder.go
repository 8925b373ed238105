package pod

import (
	"context"

	"berth/internal/sandbox"
	"berth/internal/session"
)

// newSessions reaches into the containers of all pods.
func newSessions(s *Pods) *session.Sessions {
	return &session.Sessions{
		Pods: finder{&s.Catalog}, Runtime: s.runtime, Handler: s.bundle.Handlers.Of, Layout: s.cfg.Layout,
		Host: s.bundle.Host,
		Log:  s.cfg.Log,
	}
}

// finder finds pods for those who neither make nor end them.
type finder struct{ in *Catalog }

// Pod returns what is known of a pod.
func (f finder) Pod(id sandbox.ID) (*sandbox.Record, error) {
	p, err := f.in.find(id)
	if err != nil {
		return nil, err
	}
	return p.record(), nil
}

// Container returns what is known of a container and of its pod.
func (f finder) Container(id sandbox.ID) (*sandbox.Record, *sandbox.Container, error) {
	p, c, err := f.in.findContainer(id)
	if err != nil {
		return nil, nil, err
	}
	return p.record(), c, nil
}

// Adopted returns what is known of a pod once it is known what of it runs.
func (f finder) Adopted(ctx context.Context, id sandbox.ID) (*sandbox.Record, error) {
	p, err := f.in.find(id)
	if err != nil {
		return nil, err
	}
	if err := p.waitAdopted(ctx); err != nil {
		return nil, err
	}
	return p.record(), nil
}
