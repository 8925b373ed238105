// Package registry tests pulling as a kubelet sees it: a real daemon and a real registry, with a proxy between them
// that does what bad networks and bad registries do, and tells what was asked.
//
// Runtimes have no part in it, so these tests run once. Most share one node; a proxy and names of its own keep each
// test apart from the others.
package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/hygiene"
	"berth/test/node"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("registry: these tests need root")
		os.Exit(1)
	}
	os.Exit(hygiene.Main(m, closeShared))
}

// timeout bounds every wait for something that should come about. No test measures how long that takes.
const timeout = 60 * time.Second

// shared is what most tests use.
var shared struct {
	mu       sync.Mutex
	registry *fixture.Registry
	node     *node.Node
	names    []string // what to look for when this package is over
}

// A rig is a test and its node. Its methods end the test when something fails that is not what it tests.
type rig struct {
	*testing.T
	n *node.Node
}

// impatient is the configuration of the nodes: what sends nothing is given up soon.
const impatient = "stall_timeout = \"4s\"\nfirst_byte_timeout = \"4s\"\n"

// patient is that of a node whose hosts a test makes wait for as long as it takes.
const patient = ""

// open gives a test the shared node, and lets it run beside others.
func open(t *testing.T) rig {
	t.Helper()
	t.Parallel()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.node == nil {
		n, err := node.Open(node.Options{Runtime: runtime(), Tables: "[images]\n" + impatient})
		if err != nil {
			t.Fatal(err)
		}
		shared.node, shared.names = n, append(shared.names, n.Dir, n.Instance)
	}
	return rig{t, shared.node}
}

// openOwn gives a test a node of its own, with a configuration for images, and checks at the end that it left nothing.
func openOwn(t *testing.T, images string) rig {
	t.Helper()
	t.Parallel()
	n := node.OpenFor(t, node.Options{Runtime: runtime(), Tables: "[images]\n" + images})
	shared.mu.Lock()
	shared.names = append(shared.names, n.Dir, n.Instance)
	shared.mu.Unlock()
	return rig{t, n}
}

// runtime is one that the machine has: nothing is run with it.
func runtime() string {
	if one := os.Getenv("BERTH_TEST_RUNTIME"); one != "" {
		return one
	}
	return node.Runc
}

func closeShared() (names []string, err error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.node != nil {
		err = shared.node.Close()
	}
	if shared.registry != nil {
		err = errors.Join(err, shared.registry.Close())
	}
	return shared.names, err
}

// registry gives the registry that lets everybody in.
func (r rig) registry() *fixture.Registry {
	r.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.registry == nil {
		reg, err := fixture.StartRegistry(fixture.RegistryOptions{})
		r.ok(err)
		shared.registry = reg
	}
	return shared.registry
}

// ownRegistry starts a registry for one test.
func (r rig) ownRegistry(o fixture.RegistryOptions) *fixture.Registry {
	r.Helper()
	reg, err := fixture.StartRegistry(o)
	r.ok(err)
	r.Cleanup(func() { _ = reg.Close() })
	return reg
}

// proxy starts a proxy that the node reaches: before the shared registry if the options name none.
func (r rig) proxy(options ...fixture.ProxyOptions) *fixture.Proxy {
	r.Helper()
	var o fixture.ProxyOptions
	if len(options) > 0 {
		o = options[0]
	}
	if o.Target == nil {
		o.Target = r.registry()
	}
	o.Listen = r.n.Space.Listen
	p, err := fixture.StartProxy(o)
	r.ok(err)
	r.Cleanup(func() { _ = p.Close() })
	return p
}

func (r rig) sub(name string, f func(r rig)) {
	r.Run(name, func(t *testing.T) { f(rig{t, r.n}) })
}

// beside runs f as a subtest that does not hold up the others.
func (r rig) beside(name string, f func(r rig)) {
	r.Run(name, func(t *testing.T) {
		t.Parallel()
		f(rig{t, r.n})
	})
}

func (r rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// context ends when a test has waited enough.
func (r rig) context() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	r.Cleanup(cancel)
	return ctx
}

func (r rig) await(p *fixture.Proxy, part string, wanted func([]fixture.Request) bool) {
	r.Helper()
	r.ok(p.Await(r.context(), part, wanted))
}

// forget empties the record of what a proxy was asked. An answer may be there before the proxy has noted that it is
// over.
func (r rig) forget(p *fixture.Proxy) {
	r.Helper()
	r.await(p, "", func(seen []fixture.Request) bool {
		return !slices.ContainsFunc(seen, func(s fixture.Request) bool { return s.Ended.IsZero() })
	})
	p.Forget()
}

// eventually waits for what shows in files only.
func (r rig) eventually(what string, f func() bool) {
	r.Helper()
	for deadline := time.Now().Add(timeout); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("waited in vain until %s", what)
		}
	}
}

// pull pulls as the kubelet does.
func (r rig) pull(reference string, auth *v1.AuthConfig) error {
	r.Helper()
	_, err := r.n.Images.PullImage(r.context(), &v1.ImageSpec{Image: reference}, auth, nil)
	return err
}

// refused wants a pull to fail with the code, and with each of the words in its error. What is Unavailable must begin
// with the word by which the kubelet knows it; its client keeps that, and no code.
func (r rig) refused(err error, want codes.Code, words ...string) {
	r.Helper()
	got := status.Code(err)
	if err != nil && strings.HasPrefix(err.Error(), "RegistryUnavailable: ") {
		got = codes.Unavailable
	}
	if got != want {
		r.Errorf("code %s, wanted %s: %v", got, want, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.Errorf("the error does not name %q: %v", w, err)
		}
	}
}

// image is what the node says of a reference, nil when it knows none.
func (r rig) image(reference string) *v1.Image {
	r.Helper()
	resp, err := r.n.Images.ImageStatus(r.context(), &v1.ImageSpec{Image: reference}, false)
	r.ok(err)
	return resp.Image
}

func (r rig) remove(reference string) {
	r.Helper()
	r.ok(r.n.Images.RemoveImage(r.context(), &v1.ImageSpec{Image: reference}))
}

// unique makes a name out of a test's name, for repositories, hosts and files.
func (r rig) unique() string {
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(strings.TrimPrefix(r.Name(), "Test")))
	for strings.Contains(name, "--") {
		name = strings.ReplaceAll(name, "--", "-")
	}
	return strings.Trim(name, "-")
}
