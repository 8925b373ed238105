package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/test/fixture"
)

// pulls is what berth pulls says is under way.
func (r rig) pulls() (all []admin.Underway) {
	r.Helper()
	out, err := r.n.Command("pulls", "-o", "json").Output()
	r.ok(err)
	r.ok(json.Unmarshal(out, &all))
	return all
}

// awaitPull waits until a pull of the reference is what a test wants.
func (r rig) awaitPull(reference string, wanted func(admin.Underway) bool) (got admin.Underway) {
	r.Helper()
	r.eventually("a pull of "+reference+" is seen", func() bool {
		for _, got = range r.pulls() {
			if got.Reference == reference && wanted(got) {
				return true
			}
		}
		return false
	})
	return got
}

func anyPull(admin.Underway) bool { return true }

// pullFor pulls as a kubelet does for a pod.
func (r rig) pullFor(ctx context.Context, reference, namespace, pod string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := r.n.Images.PullImage(ctx, &v1.ImageSpec{Image: reference}, nil, &v1.PodSandboxConfig{
			Metadata: &v1.PodSandboxMetadata{Namespace: namespace, Name: pod, Uid: pod},
		})
		done <- err
	}()
	return done
}

// TestPullsUnderWay pulls by CRI over a slow link, through a mirror. berth pulls tells of it until its end, of one that
// waits behind it as waiting, and of none whose caller has left.
func TestPullsUnderWay(t *testing.T) {
	const rate = 256 * kib
	r := openOwn(t, patient+"max_concurrent_downloads = 1\n")
	p := r.proxy()
	host := r.mirrored(p, r.proxy())
	slow := r.app(4*rate, 8*rate).push()
	next := r.appNamed("t/"+r.unique()+"-next:v1", 2*rate).push()
	for _, l := range slices.Concat(slow.layers, next.layers) {
		p.On(l.on(fixture.Fault{Rate: rate}))
	}
	first := r.pullFor(r.context(), slow.at(host), "default", "web")
	got := r.awaitPull(slow.at(host), func(u admin.Underway) bool { return u.Done > 2*rate })
	if got.Phase != "downloading" || !slices.Equal(got.Hosts, []string{p.Addr}) ||
		got.Namespace != "default" || got.Pod != "web" {
		t.Errorf("it is %+v", got)
	}
	if want := slow.layers[0].size + slow.layers[1].size; got.Total != want || len(got.Layers) != 2 {
		t.Errorf("it has %d bytes in %d layers, want %d in 2", got.Total, len(got.Layers), want)
	}
	if got.Rate < rate/8 || got.Rate > rate*3 {
		t.Errorf("%d bytes come in a second, of %d that the link lets through", got.Rate, rate)
	}
	ctx, leave := context.WithCancel(r.context())
	second := r.pullFor(ctx, next.at(host), "default", "other")
	waits := r.awaitPull(next.at(host), func(u admin.Underway) bool { return u.Phase != "resolving" })
	if waits.Phase != "waiting" || waits.Done != 0 || waits.Rate != 0 || len(waits.Hosts) != 0 {
		t.Errorf("behind it another is %+v", waits)
	}
	table, err := r.n.Command("pulls").Output()
	r.ok(err)
	lines := bytes.Split(bytes.TrimSpace(table), []byte("\n"))
	if len(lines) != 3 || !strings.Contains(string(lines[1]), "default/web") ||
		!strings.Contains(string(lines[2]), "waiting") {
		t.Errorf("the table is\n%s", table)
	}
	leave()
	if <-second == nil {
		t.Error("a caller that has left gets its image")
	}
	r.eventually("a pull whose caller has left is gone", func() bool {
		return !slices.ContainsFunc(r.pulls(), func(u admin.Underway) bool { return u.Reference == next.at(host) })
	})
	r.ok(<-first)
	if left := r.pulls(); len(left) != 0 {
		t.Errorf("after its end there is %+v", left)
	}
	slow.arrived(slow.at(host))
}
