package registry

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"berth/test/fixture"
)

// TestMirrorsFallThrough pulls past a mirror that is bad in one way, and has the image from the next.
func TestMirrorsFallThrough(t *testing.T) {
	r := open(t)
	manifest, blob := fixture.PartManifest, fixture.PartBlob
	html := map[string]string{"Content-Type": "text/html"}
	lie := func(r *http.Response) {
		r.Header.Set("Docker-Content-Digest", "sha256:"+strings.Repeat("ab", 32))
	}
	for name, fault := range map[string]fixture.Fault{
		"lacks-the-image":     {Part: manifest, Status: 404},
		"lacks-a-blob":        {Part: blob, Status: 404},
		"is-broken":           {Status: 500, Body: "<html>oops</html>", Header: html},
		"has-broken-blobs":    {Part: blob, Status: 502},
		"is-busy-for-long":    {Status: 503, Header: map[string]string{"Retry-After": "86400"}},
		"limits-for-long":     {Part: blob, Status: 429, Header: map[string]string{"Retry-After": "86400"}},
		"forbids":             {Status: 403},
		"forbids-blobs":       {Part: blob, Status: 403},
		"asks-who":            {Status: 401, Header: map[string]string{"WWW-Authenticate": `Basic realm="mirror"`}},
		"asks-oddly":          {Part: blob, Status: 401},
		"drops-all":           {Drop: true},
		"drops-blobs":         {Part: blob, Drop: true},
		"page-for-manifest":   {Part: manifest, Status: 200, Body: "<html>Log in to the Wi-Fi</html>", Header: html},
		"page-for-blob":       {Part: blob, Status: 200, Body: "<html>Log in to the Wi-Fi</html>", Header: html},
		"names-a-digest":      {Part: manifest, Edit: lie},
		"flips-manifests":     {Part: manifest, Method: "GET", End: fixture.EndFlip, After: 20},
		"flips-blobs":         {Part: blob, End: fixture.EndFlip, After: 20},
		"cuts-manifests":      {Part: manifest, Method: "GET", End: fixture.EndShort, After: 20},
		"cuts-blobs":          {Part: blob, End: fixture.EndShort, After: 20},
		"stalls":              {Part: blob, End: fixture.EndStall, After: 10 * kib},
		"trickles":            {Part: blob, Rate: 100},
		"stalls-on-manifests": {Part: manifest, Method: "GET", End: fixture.EndStall, After: 20},
		"goes-round": {Part: blob, Redirect: func(r *http.Request) string {
			return "http://" + r.Host + r.URL.Path
		}},
		"sends-to-nowhere": {Part: blob, Redirect: func(*http.Request) string { return "http://127.0.0.1:1/gone" }},
		"sends-to-a-file":  {Part: blob, Redirect: func(*http.Request) string { return "file:///etc/passwd" }},
	} {
		r.beside(name, func(r rig) {
			bad, good := r.proxy(), r.proxy()
			bad.On(fault)
			a := r.app(100*kib, 8*kib).push()
			a.works(a.at(r.mirrored(bad, good)))
			if len(bad.Requests("")) == 0 || len(good.Requests("")) == 0 {
				r.Errorf("the bad mirror was asked %d times, the good one %d", len(bad.Requests("")), len(good.Requests("")))
			}
		})
	}
}

// TestMirrorThatIsDown has nobody at a mirror's address, and somebody who cannot speak TLS at another.
func TestMirrorThatIsDown(t *testing.T) {
	r := open(t)
	good, plain, gone := r.proxy(), r.proxy(), r.proxy()
	r.ok(gone.Close())
	a := r.app(8 * kib).push()
	a.works(a.at(r.mirroredAt(gone.URL(), "https://"+plain.Addr, good.URL())))
}

// TestMirrorThatIsNotTrusted has a certificate that nobody vouches for.
func TestMirrorThatIsNotTrusted(t *testing.T) {
	r := open(t)
	bad, good := r.proxy(fixture.ProxyOptions{TLS: true}), r.proxy()
	a := r.app(8 * kib).push()
	a.works(a.at(r.mirrored(bad, good)))
	if asked := bad.Requests(""); len(asked) != 0 {
		r.Errorf("a mirror with a false certificate was asked %v", asked)
	}
}

// TestMirrorThatStallsInTheMiddle is left in the middle of a blob; the next one goes on at that byte.
func TestMirrorThatStallsInTheMiddle(t *testing.T) {
	r := open(t)
	bad, good := r.proxy(), r.proxy()
	a := r.app(mib).push()
	l := a.layers[0]
	bad.On(l.on(fixture.Fault{End: fixture.EndStall, After: 600 * kib}))
	a.works(a.at(r.mirrored(bad, good)))
	if sent := l.sent(bad, good); sent > l.size+64*kib {
		r.Errorf("%d bytes were sent for a layer of %d: %v, then %v", sent, l.size, l.asked(bad), l.asked(good))
	}
	if asked := l.asked(good); len(asked) == 0 || asked[0].Status != http.StatusPartialContent {
		r.Errorf("the second mirror was asked %v", asked)
	}
	r.await(bad, fixture.PartBlob, func(seen []fixture.Request) bool { // its connection is not kept
		for _, s := range seen {
			if s.Ended.IsZero() {
				return false
			}
		}
		return true
	})
}

// TestMirrorThatLiesInTheMiddle sends something else from a byte on. What came of it is thrown away.
func TestMirrorThatLiesInTheMiddle(t *testing.T) {
	r := open(t)
	bad, good := r.proxy(), r.proxy()
	a := r.app(mib).push()
	l := a.layers[0]
	bad.On(l.on(fixture.Fault{End: fixture.EndFlip, After: 600 * kib}))
	a.works(a.at(r.mirrored(bad, good)))
	r.await(good, fixture.PartBlob, l.over)
	if sent := l.sent(good); sent != l.size {
		r.Errorf("the honest mirror sent %d of %d bytes: %v", sent, l.size, l.asked(good))
	}
}

// TestAllHostsFail wants an error that says what each host said, and the code that tells most.
func TestAllHostsFail(t *testing.T) {
	r := open(t)
	for name, c := range map[string]struct {
		first, second fixture.Fault
		code          codes.Code
		words         []string
	}{
		"broken": {fixture.Fault{Status: 500}, fixture.Fault{Status: 502}, codes.Unavailable, []string{"500", "502"}},
		"stalled": {fixture.Fault{Part: fixture.PartBlob, End: fixture.EndStall},
			fixture.Fault{Part: fixture.PartBlob, Silent: true}, codes.Unavailable, nil},
		"no-image":  {fixture.Fault{Status: 404}, fixture.Fault{Status: 404}, codes.NotFound, nil},
		"forbidden": {fixture.Fault{Status: 500}, fixture.Fault{Status: 403}, codes.PermissionDenied, nil},
		"lying": {fixture.Fault{Part: fixture.PartBlob, End: fixture.EndFlip},
			fixture.Fault{Part: fixture.PartBlob, End: fixture.EndFlip}, codes.DataLoss, nil},
		"origin-is-down": {fixture.Fault{Status: 404}, fixture.Fault{Drop: true}, codes.Unavailable,
			[]string{"404"}},
	} {
		r.beside(name, func(r rig) {
			one, two := r.proxy(), r.proxy()
			one.On(c.first)
			two.On(c.second)
			a := r.app(100 * kib).push()
			reference := a.at(r.mirrored(one, two))
			r.refused(r.pull(reference, nil), c.code, append(c.words, reference, one.Addr, two.Addr)...)
			a.absent(reference)
		})
	}
}

// TestRetryAfter checks when a host that asked for a pause is asked again.
func TestRetryAfter(t *testing.T) {
	r := open(t)
	at := time.Now().Add(timeout / 10).Truncate(time.Second)
	for name, c := range map[string]struct {
		part, after string
		status      int
	}{
		"blob-seconds":     {fixture.PartBlob, "2", 429},
		"manifest-seconds": {fixture.PartManifest, "2", 503},
		"blob-date":        {fixture.PartBlob, at.UTC().Format(http.TimeFormat), 503},
		"manifest-date":    {fixture.PartManifest, at.UTC().Format(http.TimeFormat), 429},
	} {
		r.beside(name, func(r rig) {
			p := r.proxy()
			p.On(fixture.Fault{Part: c.part, Status: c.status, Header: map[string]string{"Retry-After": c.after}, Times: 1})
			a := r.app(8 * kib).push()
			a.works(a.at(p.Addr))
			asked := p.Requests(c.part)
			soonest := asked[0].Began.Add(2 * time.Second)
			if c.after != "2" {
				soonest = at
			}
			if len(asked) < 2 || asked[1].Began.Before(soonest) {
				r.Errorf("nothing was to be asked again before %v: %v", soonest, asked)
			}
		})
	}
}

// TestRetryAfterTooLong fails at once when the wait that is asked for is longer than a pull should be.
func TestRetryAfterTooLong(t *testing.T) {
	r := open(t)
	p := r.proxy()
	p.On(fixture.Fault{Status: 429, Header: map[string]string{"Retry-After": "86400"}})
	a := r.app(8 * kib).push()
	r.refused(r.pull(a.at(p.Addr), nil), codes.Unavailable, p.Addr, "24h")
}

// TestRegistryThatRecovers is broken for a moment, and asked again.
func TestRegistryThatRecovers(t *testing.T) {
	r := open(t)
	for name, fault := range map[string]fixture.Fault{
		"500": {Status: 500}, "502-page": {Status: 502, Body: "<html></html>"}, "503": {Status: 503}, "504": {Status: 504},
		"drop": {Drop: true},
	} {
		r.beside(name, func(r rig) {
			p := r.proxy()
			a := r.app(8 * kib).push()
			for _, part := range []string{fixture.PartManifest, fixture.PartBlob} {
				fault.Part, fault.Times = part, 2
				p.On(fault)
			}
			a.works(a.at(p.Addr))
		})
	}
}

// TestOddRegistries pulls from hosts that do little, but enough.
func TestOddRegistries(t *testing.T) {
	r := open(t)
	hide := func(key string) func(*http.Response) { return func(r *http.Response) { r.Header.Del(key) } }
	for name, fault := range map[string]fixture.Fault{
		"no-head":              {Method: "HEAD", Status: 405},
		"no-digest-in-answers": {Edit: hide("Docker-Content-Digest")},
		"closes-connections":   {Edit: func(r *http.Response) { r.Header.Set("Connection", "close") }},
		"no-length":            {Part: fixture.PartBlob, Edit: func(r *http.Response) { r.Header.Del("Content-Length") }},
		"no-ranges":            {NoRange: true},
		"octets-for-a-manifest": {Part: fixture.PartManifest, Edit: func(r *http.Response) {
			r.Header.Set("Content-Type", "application/octet-stream")
		}},
		"late":                   {Before: 500 * time.Millisecond},
		"redirects-to-elsewhere": {Part: fixture.PartBlob, Redirect: nil},
	} {
		r.beside(name, func(r rig) {
			p, elsewhere := r.proxy(), r.proxy()
			if name == "redirects-to-elsewhere" {
				fault.Redirect = func(r *http.Request) string { return elsewhere.URL() + r.URL.Path }
			}
			p.On(fault)
			a := r.app(8*kib, 9*kib).push()
			a.works(a.at(p.Addr))
		})
	}
}

// TestSlowHandshake has a host that takes its time before it speaks.
func TestSlowHandshake(t *testing.T) {
	r := open(t)
	p := r.proxy(fixture.ProxyOptions{TLS: true, Handshake: 300 * time.Millisecond})
	a := r.app(8 * kib).push()
	r.hosts(p.Addr, mirror(p.URL(), `ca = "ca.pem"`), file{"ca.pem", p.CA})
	a.works(a.at(p.Addr))
}

// TestLargeLayerUsesSeveralConnections has a host that gives each connection only so much.
func TestLargeLayerUsesSeveralConnections(t *testing.T) {
	r := open(t)
	p := r.proxy()
	a := r.app(48 * mib).push()
	l := a.layers[0]
	p.On(l.on(fixture.Fault{Rate: 8 * mib}))
	a.works(a.at(p.Addr))
	asked := l.asked(p)
	if n := atOnce(asked); n < 2 || n > 4+1 { // the proxy may still be at one that was left in the middle
		r.Errorf("%d connections at once: %v", n, asked)
	}
	if sent := l.sent(p); sent > l.size*5/4 {
		r.Errorf("%d bytes were sent for a layer of %d: %v", sent, l.size, asked)
	}
}

// atOnce is how many of the requests went on at the same time, at most.
func atOnce(asked []fixture.Request) (most int) {
	for _, a := range asked {
		n := 0
		for _, b := range asked {
			if !b.Began.After(a.Began) && (b.Ended.IsZero() || b.Ended.After(a.Began)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
