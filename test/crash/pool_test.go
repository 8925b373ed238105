package crash

import (
	"errors"
	"sync"
	"testing"

	"berth/test/fixture"
	"berth/test/node"
)

// nodes is a pool: a node that was left clean serves the next kill, one that was not is taken down.
type nodes struct {
	mu       sync.Mutex
	registry *fixture.Registry
	free     []*node.Node
	names    []string
}

var pool nodes

func (p *nodes) take(t *testing.T, runtime string) *node.Node {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.registry == nil {
		r, err := fixture.StartRegistry(fixture.RegistryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.registry = r
		if err := push(r); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.free); n > 0 {
		taken := p.free[n-1]
		p.free = p.free[:n-1]
		return taken
	}
	n, err := node.Open(node.Options{Runtime: runtime, Fault: true, Reach: []string{p.registry.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	p.names = append(p.names, n.Dir, n.Instance)
	return n
}

// give takes a node back, or takes it down when something went wrong on it.
func (p *nodes) give(n *node.Node, clean bool) {
	if !clean {
		_ = n.Close() // what it says was said already
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, n)
}

func (p *nodes) close() (names []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, n := range p.free {
		errs = append(errs, n.Close())
	}
	if p.registry != nil {
		errs = append(errs, p.registry.Close())
	}
	return p.names, errors.Join(errs...)
}
