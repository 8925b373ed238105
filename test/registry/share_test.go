package registry

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
)

// gate holds answers back until it is opened. It opens by itself when the test is over.
func (r rig) gate() (hold func(*http.Response), open func()) {
	shut, once := make(chan struct{}), sync.Once{}
	open = func() { once.Do(func() { close(shut) }) }
	r.Cleanup(open)
	return func(*http.Response) { <-shut }, open
}

// begun says that a layer is asked for.
func (l layer) begun(seen []fixture.Request) bool {
	for _, s := range seen {
		if s.Name == l.digest {
			return true
		}
	}
	return false
}

// over says that a layer was asked for, and nothing of it goes on.
func (l layer) over(seen []fixture.Request) bool {
	for _, s := range seen {
		if s.Name == l.digest && s.Ended.IsZero() {
			return false
		}
	}
	return l.begun(seen)
}

// TestEightCallersFetchOnce has as many callers for one image at once.
func TestEightCallersFetchOnce(t *testing.T) {
	r := openOwn(t, patient)
	p := r.proxy()
	a := r.app(200*kib, 100*kib).push()
	hold, open := r.gate()
	p.On(a.layers[0].on(fixture.Fault{Edit: hold}))
	const callers = 8
	errs := make(chan error, callers)
	for range callers {
		go func() { errs <- r.pull(a.at(p.Addr), nil) }()
	}
	resolved := func(seen []fixture.Request) bool { // each for itself
		n := 0
		for _, s := range seen {
			if s.Name == "v1" {
				n++
			}
		}
		return n >= callers
	}
	r.await(p, fixture.PartManifest, resolved)
	open()
	for range callers {
		r.ok(<-errs)
	}
	a.arrived(a.at(p.Addr))
	for _, l := range a.layers {
		r.await(p, fixture.PartBlob, l.over)
		if asked := l.asked(p); len(asked) != 1 || asked[0].Sent != l.size {
			r.Errorf("asked %v", asked)
		}
	}
}

// TestStrangersJoinNothing has a caller without the right to an image that another is just pulling.
func TestStrangersJoinNothing(t *testing.T) {
	r := openOwn(t, patient)
	p := r.proxy(fixture.ProxyOptions{Target: r.ownRegistry(fixture.RegistryOptions{Auth: true})})
	a := r.app(200 * kib).push(p.Target())
	hold, open := r.gate()
	p.On(a.layers[0].on(fixture.Fault{Edit: hold}))
	done := make(chan error, 1)
	go func() { done <- r.pull(a.at(p.Addr), right) }()
	r.await(p, fixture.PartBlob, a.layers[0].begun)
	for _, auth := range []*v1.AuthConfig{nil, guess} {
		r.refused(r.pull(a.at(p.Addr), auth), codes.Unauthenticated) // while the other goes on
	}
	open()
	r.ok(<-done)
	a.arrived(a.at(p.Addr))
	for _, auth := range []*v1.AuthConfig{nil, guess} { // and what is here is not pulled for them either
		r.refused(r.pull(a.at(p.Addr), auth), codes.Unauthenticated)
	}
}

// TestPullThatNobodyWaitsFor ends when its only caller leaves, and goes on when one of two does.
func TestPullThatNobodyWaitsFor(t *testing.T) {
	r := openOwn(t, patient)
	p := r.proxy()
	a := r.app(mib).push()
	p.On(a.layers[0].on(fixture.Fault{Rate: 64 * kib, Times: 1}))
	leave := func() (context.CancelFunc, chan error) {
		ctx, cancel := context.WithCancel(r.context())
		done := make(chan error, 1)
		go func() {
			_, err := r.n.Images.PullImage(ctx, &v1.ImageSpec{Image: a.at(p.Addr)}, nil, nil)
			done <- err
		}()
		return cancel, done
	}
	cancel, done := leave()
	r.await(p, fixture.PartBlob, a.layers[0].begun)
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		r.Errorf("who left got %v", err)
	}
	r.await(p, fixture.PartBlob, a.layers[0].over)
	if sent := a.layers[0].sent(p); sent >= a.layers[0].size {
		r.Errorf("it was fetched to its end: %d bytes", sent)
	}
	a.absent(a.at(p.Addr))

	r.forget(p)
	hold, open := r.gate()
	p.Heal()
	p.On(a.layers[0].on(fixture.Fault{Edit: hold}))
	cancel, done = leave()
	r.await(p, fixture.PartBlob, a.layers[0].begun)
	other := make(chan error, 1)
	go func() { other <- r.pull(a.at(p.Addr), nil) }()
	r.await(p, fixture.PartManifest, func(seen []fixture.Request) bool {
		n := 0
		for _, s := range seen {
			if s.Name == "v1" && !s.Ended.IsZero() {
				n++
			}
		}
		return n >= 2
	})
	cancel()
	<-done
	open()
	r.ok(<-other)
	a.arrived(a.at(p.Addr))
}

// TestKilledPullLeavesNothing kills the daemon in the middle of a layer.
func TestKilledPullLeavesNothing(t *testing.T) {
	r := openOwn(t, impatient)
	p := r.proxy()
	a := r.app(300*kib, mib).push()
	p.On(a.layers[1].on(fixture.Fault{End: fixture.EndStall, After: 600 * kib}))
	done := make(chan error, 1)
	go func() { done <- r.pull(a.at(p.Addr), nil) }()
	r.await(p, fixture.PartBlob, func(seen []fixture.Request) bool {
		first, second := false, false
		for _, s := range seen {
			first = first || s.Name == a.layers[0].digest && !s.Ended.IsZero()
			second = second || s.Name == a.layers[1].digest && s.Sent >= 600*kib
		}
		return first && second
	})
	r.ok(r.n.Kill9())
	if err := <-done; err == nil {
		r.Error("the pull succeeded")
	}
	r.await(p, fixture.PartBlob, a.layers[1].over)
	p.Heal()
	r.ok(r.n.Start())
	r.nothingUnderWay()
	if got := r.image(a.at(p.Addr)); got != nil {
		r.Errorf("there is %v", got)
	}
	r.checks()
	a.works(a.at(p.Addr))
	r.checks()
	r.remove(a.at(p.Addr))
	a.absent(a.at(p.Addr))
}

// nothingUnderWay waits until no half-made or half-removed layer is on the disk.
func (r rig) nothingUnderWay() {
	r.Helper()
	r.eventually("nothing is under way", func() bool {
		left, err := os.ReadDir(filepath.Join(r.n.Root, "images/ingest"))
		return err == nil && len(left) == 0
	})
}

// checks runs berth check, which must find nothing wrong.
func (r rig) checks() {
	r.Helper()
	if out, code := r.berth(nil, "check"); code != 0 {
		r.Errorf("berth check: exit code %d: %s", code, out)
	}
}

// berth runs the command line against the node, with more environment.
func (r rig) berth(env []string, args ...string) (out string, code int) {
	r.Helper()
	var text strings.Builder
	cmd := r.n.Command(args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &text, &text
	err := r.n.Space.Run(cmd)
	if cmd.ProcessState == nil {
		r.Fatal(err)
	}
	return text.String(), cmd.ProcessState.ExitCode()
}

// TestCommandLinePull pulls as people do: with credentials, for another platform, and in vain.
func TestCommandLinePull(t *testing.T) {
	r := open(t)
	p := r.proxy(fixture.ProxyOptions{Target: r.ownRegistry(fixture.RegistryOptions{Auth: true})})
	a := r.app(300 * kib).push(p.Target())
	reference := a.at(p.Addr)
	p.On(a.layers[0].on(fixture.Fault{End: fixture.EndHangup, After: 100 * kib, Times: 1}))
	if out, code := r.berth(nil, "pull", reference); code == 0 || !strings.Contains(out, reference) {
		r.Errorf("without credentials: exit code %d, %s", code, out)
	}
	if out, code := r.berth([]string{"BERTH_CREDS=" + fixture.User + ":" + guess.Password}, "pull",
		reference); code == 0 || strings.Contains(out, guess.Password) {
		r.Errorf("with wrong credentials: exit code %d, %s", code, out)
	}
	if out, code := r.berth([]string{"BERTH_CREDS=" + fixture.User + ":" + fixture.Password}, "pull",
		reference); code != 0 {
		r.Errorf("exit code %d, %s", code, out)
	}
	a.arrived(reference)
	out, code := r.berth([]string{"BERTH_CREDS=" + fixture.User + ":" + fixture.Password}, "pull", "--platform",
		"linux/s390x", reference)
	if code == 0 || !strings.Contains(out, "linux/") {
		r.Errorf("for another platform: exit code %d, %s", code, out)
	}
	p.On(fixture.Fault{Status: 503})
	if out, code := r.berth(nil, "pull", reference); code == 0 || !strings.Contains(out, "RegistryUnavailable: ") {
		r.Errorf("from a broken registry: exit code %d, %s", code, out)
	}
}
