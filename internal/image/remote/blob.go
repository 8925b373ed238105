package remote

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blob is content on its way, in order. One goroutine reads it. It begins as one connection that its reader reads from.
// When the reader of a large blob mostly waits, more connections fetch the segments that come next.
type Blob struct {
	repo    *Repository
	desc    ocispec.Descriptor
	mirrors *mirrorSet
	ctx     context.Context
	stop    context.CancelFunc
	once    sync.Once

	at     int64   // of the next byte to be read
	direct *stream // nil between two requests
	gauge  gauge
	probe  *parallelismProbe // of the host that it is read from; nil before the first byte
	ahead  prefetch
}

// Open begins to read a manifest, config or layer by its descriptor: from the first host that has it, and, for a
// foreign layer and where Options allow it, from the urls of the descriptor when no registry has. It fails with an
// Error, as reading does. The Blob ends with ctx; the caller closes it.
func (r *Repository) Open(ctx context.Context, desc ocispec.Descriptor) (*Blob, error) {
	ctx, stop := context.WithCancel(ctx)
	b := &Blob{repo: r, desc: desc, ctx: ctx, stop: stop}
	b.ahead.blob = b
	mismatched, suspected := r.mismatches(desc.Digest)
	hosts := slices.Concat(r.hosts, r.elsewhere(desc))
	b.mirrors = r.mirrorSet("fetch "+desc.Digest.String(), docker.HostCapabilityPull, hosts, mismatched, suspected)
	r.enter()
	if err := b.connect(); err != nil {
		_ = b.Close()
		return nil, hint(err, desc, r.client.options.ForeignURLs)
	}
	b.gauge = gauge{since: b.mirrors.clock.Now()}
	return b, nil
}

// Read returns io.EOF when as many bytes were read as the descriptor promises.
func (b *Blob) Read(p []byte) (int, error) {
	if b.at >= b.desc.Size {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if err := ended(b.ctx); err != nil {
			return 0, err
		}
		b.ahead.feed()
		limit := b.limit()
		if limit <= b.at {
			if n := b.readAhead(b.ahead.head(), p); n > 0 {
				return n, nil
			}
			continue // it was of no use beyond this
		}
		if n, err := b.readDirect(p, limit); n > 0 || err != nil {
			return n, err
		}
	}
}

// readDirect reads from the reader's own connection, up to limit. Nothing and no error means: try again.
func (b *Blob) readDirect(p []byte, limit int64) (int, error) {
	if b.direct == nil {
		if err := b.connect(); err != nil {
			return 0, err
		}
	}
	st := b.direct
	n, took, err := st.next(p[:min(int64(len(p)), limit-b.at)])
	b.advance(n, took)
	b.mirrors.progress(st.mirror, n)
	if err != nil {
		b.disconnect()
		if err := b.giveWay(st.mirror, err); err != nil {
			return n, err
		}
	} else if b.at == limit || st.at == st.end {
		b.disconnect()
	}
	return n, nil
}

// giveWay judges a stream that broke off, and waits as long as it should before the next.
func (b *Blob) giveWay(s *mirrorState, err error) error {
	if err := ended(b.ctx); err != nil {
		return err
	}
	return sleep(b.ctx, b.mirrors.clock, b.mirrors.noteFault(s, faultOfError(err)))
}

func (b *Blob) readAhead(seg *segment, p []byte) int {
	start := b.mirrors.clock.Now()
	b.disconnect()
	n := seg.read(p, b.at)
	b.advance(n, b.mirrors.clock.Now().Sub(start))
	if n == 0 || b.at == seg.end {
		b.ahead.pop()
	}
	return n
}

func (b *Blob) advance(n int, waited time.Duration) {
	b.at += int64(n)
	c, now := b.repo.client, b.mirrors.clock.Now()
	all := c.received.Add(int64(n))
	s := b.mirrors.last()
	if s == nil {
		return
	}
	b.probeAt(s.host.origin())
	seen := b.probe.receive(n, now, all)
	if over, starved := b.gauge.note(now, waited); over && b.desc.Size > c.options.sizes.large {
		starved = starved || b.ahead.wanted
		b.ahead.wanted = starved && b.probe.allows(b, seen, c.options.sizes.probe)
	}
}

// probeAt makes the blob take part in the probe of the host that it is read from now.
func (b *Blob) probeAt(host string) {
	if b.probe != nil && b.probe.host == host {
		return
	}
	b.endProbe()
	b.probe = b.repo.client.probes.enter(host)
}

func (b *Blob) endProbe() {
	if b.probe != nil {
		b.repo.client.probes.leave(b.probe, b)
		b.probe = nil
	}
}

// limit is where the reader's own connection ends, because another connection fetches what follows. As long as a host
// has not answered the request for that, the reader's own connection goes on, if it has one: the host may refuse a
// range. It also goes on when it is ahead of the others.
func (b *Blob) limit() int64 {
	b.ahead.drop(b.at)
	if seg := b.ahead.head(); seg != nil && (b.direct == nil || seg.reaches(b.at)) {
		return seg.start
	}
	return b.desc.Size
}

// connect makes the reader's own connection.
func (b *Blob) connect() error {
	r := b.request(b.at, b.limit())
	if b.ahead.wanted && b.ahead.ranges == rangesServed {
		r.to = min(r.to, b.at+b.repo.client.options.sizes.span)
	}
	err := b.mirrors.try(b.ctx, func(s *mirrorState) (f *fault) {
		b.direct, f = b.open(b.ctx, s, r)
		return f
	})
	if err == nil {
		b.ahead.ranges = b.direct.ranges
	}
	return err
}

func (b *Blob) disconnect() {
	if b.direct != nil {
		b.direct.close()
		b.direct = nil
	}
}

// request is for the bytes from one to before another.
func (b *Blob) request(from, to int64) request {
	kind, accept := "blobs", "*/*"
	if b.desc.MediaType != "" {
		accept = b.desc.MediaType + ", */*"
	}
	switch {
	case images.IsManifestType(b.desc.MediaType) || images.IsIndexType(b.desc.MediaType):
		kind = "manifests"
	case b.repo.answers.named(b.desc.Digest):
		kind, accept = "manifests", manifestTypes
	}
	return request{
		method: http.MethodGet, path: b.repo.path() + "/" + kind + "/" + b.desc.Digest.String(), accept: accept,
		scope: b.repo.scope(), from: from, to: to, ranged: from > 0 || to < b.desc.Size, proven: true,
		manifest: kind == "manifests",
	}
}

// ReportMismatch records that the content is not what the digest promises. The hosts that served it are not asked for
// this digest again by this Repository; when there were several, the last in order may still serve it alone. It returns
// false when no host is left: opening the content again would fail.
func (b *Blob) ReportMismatch() bool {
	served, all := b.mirrors.servers()
	return b.repo.noteMismatch(b.desc.Digest, served, all)
}

// MismatchedMirrors names the hosts that have served other content than the digest promises.
func (b *Blob) MismatchedMirrors() []string { return b.repo.mismatchedNames(b.desc) }

// Sender names the host that the blob is read from, with its port; empty before one was asked. Anybody may call it.
func (b *Blob) Sender() string {
	if s := b.mirrors.last(); s != nil {
		return s.host.name
	}
	return ""
}

// Close ends all that goes on for the blob, at once. No Read may be under way. It may be called again.
func (b *Blob) Close() error {
	b.once.Do(func() {
		b.stop()
		b.disconnect()
		b.ahead.close()
		b.endProbe()
		b.repo.leave()
	})
	return nil
}

// gauge finds out whether a reader waits for its source or the other way around: one that waits for more than half of
// the time could read more than twice as fast. Whether more connections help with that is for a probe to say: it may
// also wait for a processor, or for a link that is full.
type gauge struct {
	since  time.Time
	waited time.Duration
}

const gaugeWindow = 100 * time.Millisecond

// note adds a read. When a window is over with it, it says whether the reader mostly waited meanwhile.
func (g *gauge) note(now time.Time, waited time.Duration) (over, starved bool) {
	g.waited += waited
	span := now.Sub(g.since)
	if span < gaugeWindow {
		return false, false
	}
	starved = g.waited > span/2
	g.since, g.waited = now, 0
	return true, starved
}
