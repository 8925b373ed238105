package registry

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"berth/test/fixture"
)

// TestSlowRegistriesHoldUpNobody pulls from ten registries that drip four layers each, or do not answer, while a client
// that is stopped pulls the image that the kubelet wants: the kubelet has it all the same, in as many requests as ever.
func TestSlowRegistriesHoldUpNobody(t *testing.T) {
	for name, fault := range map[string]fixture.Fault{
		"drip":   {Rate: 2 * kib},
		"floor":  {Rate: 300 * kib},
		"silent": {Silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := openOwn(t, patient)
			for i := range 10 {
				r.dripping(i, fault)
			}
			p := r.proxy()
			a := r.app(300*kib, 200*kib, 100*kib, 50*kib, 20*kib, 10*kib).push()
			hold, open := r.gate()
			p.On(a.layers[0].on(fixture.Fault{Edit: hold}))
			resume := r.stoppedPull(a, p)
			done := make(chan error, 1)
			go func() { done <- r.pull(a.at(p.Addr), nil) }()
			open()
			r.ok(<-done)
			a.arrived(a.at(p.Addr))
			for _, l := range a.layers {
				r.await(p, fixture.PartBlob, l.over)
				if asked := l.asked(p); len(asked) != 1 || asked[0].Sent != l.size {
					r.Errorf("asked %v", asked)
				}
			}
			resume()
		})
	}
}

// dripping has the n-th registry hold up the four layers of an image in some way, for as long as the test goes on.
func (r rig) dripping(n int, fault fixture.Fault) {
	r.Helper()
	slow := r.proxy()
	image := r.appNamed(fmt.Sprintf("t/%s-slow-%d:v1", r.unique(), n), 4*mib, 4*mib, 4*mib, 4*mib).push()
	for _, l := range image.layers {
		slow.On(l.on(fault))
	}
	go func() { _ = r.pull(image.at(slow.Addr), nil) }()
	r.await(slow, fixture.PartBlob, func(seen []fixture.Request) bool {
		for _, l := range image.layers {
			if !l.begun(seen) {
				return false
			}
		}
		return true
	})
}

// stoppedPull begins to pull by the command line and stops that, with SIGSTOP, when a layer is asked for. It returns
// what has it go on, and wants it to end well.
func (r rig) stoppedPull(a *app, p *fixture.Proxy) (resume func()) {
	r.Helper()
	var text strings.Builder
	cmd := r.n.Command("pull", a.at(p.Addr))
	cmd.Stdout, cmd.Stderr = &text, &text
	r.ok(r.n.Space.Start(cmd))
	r.Cleanup(func() { _ = cmd.Process.Kill() })
	r.await(p, fixture.PartBlob, a.layers[0].begun)
	r.ok(cmd.Process.Signal(syscall.SIGSTOP))
	return func() {
		r.Helper()
		r.ok(cmd.Process.Signal(syscall.SIGCONT))
		if err := cmd.Wait(); err != nil {
			r.Errorf("%v: %s", err, text.String())
		}
	}
}
