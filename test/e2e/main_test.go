// Package e2e tests Berth as a kubelet sees it: a real daemon, real runtimes, real plugins and a real registry, through
// the kubelet's own client.
//
// Most tests run twice, side by side, on one shared node for each runtime; BERTH_TEST_RUNTIME chooses one of them. A
// test that breaks its node makes one of its own.
package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/test/fixture"
	"berth/test/hygiene"
	"berth/test/node"
)

func TestMain(m *testing.M) {
	if notes := os.Getenv(installedVariable); notes != "" {
		os.Exit(runInstalled(notes))
	}
	if os.Geteuid() != 0 {
		fmt.Println("e2e: these tests need root")
		os.Exit(1)
	}
	os.Exit(hygiene.Main(m, closeShared))
}

// runtimes are those under test.
func runtimes() []string {
	if one := os.Getenv("BERTH_TEST_RUNTIME"); one != "" {
		return []string{one}
	}
	return []string{node.Runc, node.Crun}
}

// shared is what all tests of this package use: a registry with images, and a node for each runtime.
var shared struct {
	mu       sync.Mutex
	registry *fixture.Registry
	failed   error
	nodes    map[string]*node.Node
	names    []string // what to look for when this package is over
}

// ref is the full reference of an image in the shared registry.
func ref(image string) string { return shared.registry.Ref(image) }

// images are what the shared registry serves.
func images() (map[string]v1.Image, error) {
	base, err := fixture.BusyboxRecipe()
	if err != nil {
		return nil, err
	}
	recipes := map[string]fixture.Recipe{"busybox:latest": base, "data:latest": dataRecipe,
		"one:latest": {Layers: dataRecipe.Layers[:1]}}
	for name, edit := range variants {
		r := base
		edit(&r)
		recipes[name] = r
	}
	built := map[string]v1.Image{}
	for name, r := range recipes {
		if built[name], err = r.Build(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	built["web:latest"], err = fixture.Web()
	return built, err
}

// variants are busybox images with another configuration.
var variants = map[string]func(*fixture.Recipe){
	"entry:latest": func(r *fixture.Recipe) {
		r.Config.Entrypoint, r.Config.Cmd = []string{"echo", "entry"}, []string{"cmd"}
		r.Config.Env = append(r.Config.Env[:1:1], "FROM=image", "KEPT=image")
	},
	"noenv:latest":      func(r *fixture.Recipe) { r.Config.Env = nil; r.Config.Entrypoint = []string{"/bin/sh"} },
	"workdir:latest":    func(r *fixture.Recipe) { r.Config.WorkingDir = "/home/app" },
	"user-app:latest":   func(r *fixture.Recipe) { r.Config.User = "app" },
	"user-uid:latest":   func(r *fixture.Recipe) { r.Config.User = "1000" },
	"user-pair:latest":  func(r *fixture.Recipe) { r.Config.User = "1000:50" },
	"user-names:latest": func(r *fixture.Recipe) { r.Config.User = "app:staff" },
	"user-ghost:latest": func(r *fixture.Recipe) { r.Config.User = "ghost" },
	"usr1:latest":       func(r *fixture.Recipe) { r.Config.StopSignal = "SIGUSR1" },
	"nocmd:latest":      func(r *fixture.Recipe) { r.Config.Cmd = nil },
}

// onRegistry gives the shared registry, which the first test starts.
func onRegistry(t *testing.T) *fixture.Registry {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.registry == nil && shared.failed == nil {
		shared.failed = fillRegistry()
	}
	if shared.failed != nil {
		t.Fatal(shared.failed)
	}
	return shared.registry
}

func fillRegistry() error {
	built, err := images()
	if err != nil {
		return err
	}
	r, err := fixture.StartRegistry(fixture.RegistryOptions{})
	if err != nil {
		return err
	}
	shared.registry = r
	for name, img := range built {
		if _, err := r.Push(name, img); err != nil {
			return err
		}
	}
	return nil
}

// sharedNode gives the node that the tests of one runtime share.
func sharedNode(t *testing.T, runtime string) *node.Node {
	t.Helper()
	r := onRegistry(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if n := shared.nodes[runtime]; n != nil {
		return n
	}
	n, err := node.Open(node.Options{Runtime: runtime, Reach: []string{r.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	if shared.nodes == nil {
		shared.nodes = map[string]*node.Node{}
	}
	shared.nodes[runtime] = n
	shared.names = append(shared.names, n.Dir, n.Instance)
	return n
}

// ownNode makes a node for one test, and checks at the end that it left nothing.
func ownNode(t *testing.T, o node.Options) rig {
	t.Helper()
	o.Reach = append(o.Reach, onRegistry(t).Addr)
	n := node.OpenFor(t, o)
	shared.mu.Lock()
	shared.names = append(shared.names, n.Dir, n.Instance)
	shared.mu.Unlock()
	return rig{t, n}
}

// closeShared closes what the package shares, and returns the names to look for.
func closeShared() (names []string, err error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var errs []error
	for runtime, n := range shared.nodes {
		if err := n.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the node of %s: %w", runtime, err))
		}
	}
	if shared.registry != nil {
		errs = append(errs, shared.registry.Close())
	}
	return shared.names, errors.Join(errs...)
}

// unique makes a name that Kubernetes would accept out of a test's name.
func unique(t *testing.T) string {
	name := strings.ToLower(t.Name())
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.TrimPrefix(name, "test"))
	if len(name) > 50 {
		name = name[len(name)-50:]
	}
	return strings.Trim(name, "-")
}
