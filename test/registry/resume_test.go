package registry

import (
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"

	"berth/test/fixture"
)

func ranged(r *http.Request) bool { return r.Header.Get("Range") != "" }

func contentRange(text string) func(*http.Response) {
	return func(r *http.Response) { r.Header.Set("Content-Range", text) }
}

// TestBrokenDownloads pulls a layer whose download breaks in every way that leaves the rest to be had from the same
// host.
func TestBrokenDownloads(t *testing.T) {
	r := open(t)
	cut := fixture.Fault{End: fixture.EndHangup, After: 300 * kib, Times: 1}
	for name, c := range map[string]struct {
		faults []fixture.Fault
		sent   int64 // at most
	}{
		"reset":             {[]fixture.Fault{{End: fixture.EndReset, After: 300 * kib, Times: 1}}, mib + 320*kib},
		"hang-up":           {[]fixture.Fault{cut}, mib + 64*kib},
		"before-the-body":   {[]fixture.Fault{{End: fixture.EndHangup, Times: 1}}, mib + 64*kib},
		"before-the-answer": {[]fixture.Fault{{Drop: true, Times: 2}}, mib + 64*kib},
		"again-and-again":   {[]fixture.Fault{{End: fixture.EndHangup, After: 100 * kib, Times: 9}}, mib + 64*kib},
		"stalls":            {[]fixture.Fault{{End: fixture.EndStall, After: 300 * kib, Times: 1}}, mib + 64*kib},
		"without-ranges": {
			[]fixture.Fault{{NoRange: true, End: fixture.EndHangup, After: 300 * kib, Times: 1}, {NoRange: true}},
			2*mib - 600*kib},
		"wrong-range": {[]fixture.Fault{
			{If: ranged, Edit: contentRange("bytes 0-9/1048576"), Times: 1}, cut,
		}, 2*mib + 64*kib},
		"no-range-in-the-answer": {[]fixture.Fault{{If: ranged, Edit: contentRange(""), Times: 1}, cut}, 2*mib + 64*kib},
		"range-refused": {
			[]fixture.Fault{{If: ranged, Status: http.StatusRequestedRangeNotSatisfiable, Times: 1}, cut}, 2*mib + 64*kib},
		"busy-when-resumed": {
			[]fixture.Fault{{If: ranged, Status: http.StatusBadGateway, Body: "<html>bad gateway</html>", Times: 2}, cut},
			mib + 64*kib},
		"limited-when-resumed": {[]fixture.Fault{
			{If: ranged, Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "1"}, Times: 1}, cut,
		}, mib + 64*kib},
	} {
		r.beside(name, func(r rig) {
			p := r.proxy()
			a := r.app(mib, 8*kib).push()
			for _, f := range c.faults {
				p.On(a.layers[0].on(f))
			}
			a.works(a.at(p.Addr))
			if sent := a.layers[0].sent(p); sent > c.sent {
				r.Errorf("%d bytes were sent for a layer of %d: %v", sent, a.layers[0].size, a.layers[0].asked(p))
			}
		})
	}
}

// TestResumeAtTheByte checks the request that goes on where another stopped.
func TestResumeAtTheByte(t *testing.T) {
	r := open(t)
	p := r.proxy()
	a := r.app(mib).push()
	p.On(a.layers[0].on(fixture.Fault{End: fixture.EndHangup, After: 300 * kib, Times: 1}))
	a.works(a.at(p.Addr))
	r.await(p, fixture.PartBlob, a.layers[0].over)
	asked := a.layers[0].asked(p)
	if len(asked) != 2 || asked[1].Range() == "" || asked[1].Status != http.StatusPartialContent ||
		asked[0].Sent+asked[1].Sent != a.layers[0].size {
		r.Errorf("asked %v", asked)
	}
}

// TestHostThatIsBrokenForGood has no other host to go to.
func TestHostThatIsBrokenForGood(t *testing.T) {
	r := open(t)
	for name, c := range map[string]struct {
		fault fixture.Fault
		code  codes.Code
		words []string
	}{
		"stalls":       {fixture.Fault{End: fixture.EndStall, After: kib}, codes.Unavailable, nil},
		"is-too-short": {fixture.Fault{End: fixture.EndShort, After: 10 * kib}, codes.DataLoss, []string{"sha256:"}},
		"hangs-up":     {fixture.Fault{End: fixture.EndHangup}, codes.Unavailable, nil},
		"trickles":     {fixture.Fault{Rate: 100}, codes.Unavailable, nil},
		"never-speaks": {fixture.Fault{Silent: true}, codes.Unavailable, nil},
		"is-broken":    {fixture.Fault{Status: 500, Body: "<html>oops</html>"}, codes.Unavailable, []string{"500"}},
		"flips-a-bit":  {fixture.Fault{End: fixture.EndFlip, After: 10 * kib}, codes.DataLoss, []string{"sha256:"}},
		"lost-it":      {fixture.Fault{Status: 404}, codes.NotFound, []string{"sha256:"}},
		"forbids":      {fixture.Fault{Status: 403}, codes.PermissionDenied, nil},
	} {
		r.beside(name, func(r rig) {
			p := r.proxy()
			a := r.app(100*kib, 8*kib).push()
			p.On(a.layers[0].on(c.fault))
			err := r.pull(a.at(p.Addr), nil)
			words := append(c.words, a.at(p.Addr))
			r.refused(err, c.code, words...)
			p.Heal()
			if r.image(a.at(p.Addr)) != nil {
				r.Error("refused and kept")
			}
			a.works(a.at(p.Addr)) // a failure leaves nothing in the way
		})
	}
}

// TestSlowIsNotStalled pulls from a host that is slow, but goes on.
func TestSlowIsNotStalled(t *testing.T) {
	r := open(t)
	p := r.proxy()
	a := r.app(384 * kib).push()
	p.On(a.layers[0].on(fixture.Fault{Rate: 64 * kib})) // longer than the time in which something must come
	a.works(a.at(p.Addr))
	if asked := a.layers[0].asked(p); len(asked) != 1 {
		r.Errorf("asked %v", asked)
	}
}
