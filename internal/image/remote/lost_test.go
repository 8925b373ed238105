package remote

import (
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// hole is a network in which some hosts never pick up. It counts how often that was waited for.
type hole struct {
	next  http.RoundTripper
	hosts *holes
}

type holes struct {
	names  map[string]bool
	err    error // of a connection to them; that nobody picks up when nil
	healed atomic.Bool
	dialed atomic.Int64
}

func (h *holes) around(next http.RoundTripper) http.RoundTripper { return hole{next, h} }

func (h hole) RoundTrip(r *http.Request) (*http.Response, error) {
	if !h.hosts.names[r.URL.Host] || h.hosts.healed.Load() {
		return h.next.RoundTrip(r)
	}
	h.hosts.dialed.Add(1)
	if h.hosts.err != nil {
		return nil, h.hosts.err
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
}

// TestLostMirrorOverPulls has a mirror behind a dead route: the first pull waits for it, and one pull a minute. When it
// is back, it is found by that one.
func TestLostMirrorOverPulls(t *testing.T) {
	mirror, origin := serve(t, nil), serve(t, nil)
	bad, clk := &holes{names: map[string]bool{mirror.host: true}}, quick()
	r := newRig(t, Options{clock: clk, wrap: bad.around})
	r.mirrors(t, mirror, origin)
	body := noise(t, 100)
	mirror.put(body)
	desc := origin.put(body)
	pulls := func(n int) {
		t.Helper()
		for range n {
			wants(t, r.repo(t, "registry.test/app", nil), desc, body)
		}
	}
	counts := func(when string, dialed int64, mirrored, asked int) {
		t.Helper()
		d, m, o := bad.dialed.Load(), len(mirror.requests()), len(origin.requests())
		if d != dialed || m != mirrored || o != asked {
			t.Errorf("%s: the mirror was dialled %d times and asked %d, the registry asked %d; want %d, %d, %d",
				when, d, m, o, dialed, mirrored, asked)
		}
	}
	pulls(5)
	counts("at first", 1, 0, 5)
	clk.advance(lostFor - 2*time.Second)
	pulls(5)
	counts("within a minute", 1, 0, 10)
	clk.advance(2 * time.Second)
	pulls(5)
	counts("after a minute", 2, 0, 15)
	bad.healed.Store(true)
	clk.advance(lostFor)
	pulls(5)
	counts("when it is back", 2, 5, 15)
}

// TestLostTokenServer has a mirror that is there, and a token server of it that is not: other pulls ask the mirror
// first all the same, and use it as soon as it has tokens.
func TestLostTokenServer(t *testing.T) {
	for name, lost := range map[string]error{
		"no route": nil, "no name": &net.DNSError{Err: "no such host", IsNotFound: true},
		"no answer in time": os.ErrDeadlineExceeded, // as of an http.Client with a Timeout
	} {
		t.Run(name, func(t *testing.T) {
			k := giveTokens(t)
			mirror, origin := serve(t, k.lets), serve(t, nil)
			bad := &holes{names: map[string]bool{k.host: true}, err: lost}
			r := newRig(t, Options{clock: quick(), wrap: bad.around})
			r.mirrors(t, mirror, origin)
			body := noise(t, 100)
			mirror.put(body)
			desc := origin.put(body)
			for n := range 3 {
				wants(t, r.repo(t, "registry.test/app", nil), desc, body)
				if m, o := len(mirror.requests()), len(origin.requests()); m != n+1 || o != n+1 {
					t.Errorf("after %d pulls the mirror was asked %d times, the registry %d", n+1, m, o)
				}
			}
			repo := r.repo(t, "registry.test/app", nil)
			wants(t, repo, desc, body)
			wants(t, repo, desc, body)
			if m := len(mirror.requests()); m != 4 {
				t.Errorf("a pull has asked the mirror %d times before another host", m-3)
			}
			bad.healed.Store(true)
			wants(t, r.repo(t, "registry.test/app", nil), desc, body)
			if o := len(origin.requests()); o != 5 {
				t.Errorf("the registry was asked %d times, the last time beside a mirror that has tokens", o)
			}
		})
	}
}

// TestLostHostIsTriedByOne lets one caller at a time find out whether a lost host is back.
func TestLostHostIsTriedByOne(t *testing.T) {
	clk := newManual()
	l := lostHosts{clock: clk, until: map[string]time.Time{}}
	l.claim("a")
	if l.has("a") {
		t.Error("who is asked is taken for lost")
	}
	l.add("a")
	clk.advance(lostFor - time.Second)
	l.claim("a") // nobody else was left: that changes nothing
	clk.advance(time.Second)
	if l.has("a") {
		t.Error("it is lost for longer than a minute")
	}
	l.claim("a")
	if !l.has("a") {
		t.Error("a second caller would try it as well")
	}
	l.remove("a")
	if l.has("a") {
		t.Error("who answered is taken for lost")
	}
	for _, name := range []string{"b", "c", "d"} {
		l.add(name)
		clk.advance(lostFor + time.Second)
	}
	if len(l.until) > 2 {
		t.Errorf("%d names are kept", len(l.until))
	}
}

// TestAllAreLost asks them all the same: the mirror has what the registry has not.
func TestAllAreLost(t *testing.T) {
	mirror, origin := serve(t, nil), serve(t, nil)
	bad := &holes{names: map[string]bool{mirror.host: true, origin.host: true}}
	r := newRig(t, Options{clock: quick(), wrap: bad.around})
	r.mirrors(t, mirror, origin)
	body := noise(t, 100)
	desc := mirror.put(body)
	if _, err := fetch(t.Context(), r.repo(t, "registry.test/app", nil), desc); err == nil {
		t.Fatal("a dead network served something")
	}
	r.lost.add(origin.URL)
	bad.healed.Store(true)
	wants(t, r.repo(t, "registry.test/app", nil), desc, body)
}

// TestStallIsNotLost keeps what one blob does to a mirror from other pulls: the registry behind it may be what stalls.
func TestStallIsNotLost(t *testing.T) {
	clk, body := newManual(), noise(t, 100)
	var mirror *server
	mirror = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if len(mirror.requests()) > 1 {
			return false
		}
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write(body[:1])
		_ = http.NewResponseController(w).Flush()
		eventually(t, "the client waits for the rest", func() bool {
			return slices.Contains(clk.waiting(), forever) && clk.strike()
		})
		<-r.Context().Done()
		return true
	})
	origin := serve(t, nil)
	mirror.put(body)
	desc := origin.put(body)
	r := newRig(t, Options{clock: hurried{clk}, Stall: forever})
	r.mirrors(t, mirror, origin)
	wants(t, r.repo(t, "registry.test/app", nil), desc, body)
	wants(t, r.repo(t, "registry.test/app", nil), desc, body)
	if m, n := len(mirror.requests()), len(origin.requests()); m != 2 || n != 1 {
		t.Errorf("the mirror was asked %d times, the registry %d", m, n)
	}
}
