package remote

import (
	"context"
	"io"
	"net/http"
	"net/url"
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
	repo  *Repository
	desc  ocispec.Descriptor
	round *round
	ctx   context.Context
	stop  context.CancelFunc
	once  sync.Once

	at     int64   // of the next byte to be read
	direct *stream // nil between two requests
	gauge  gauge
	ahead  prefetch
}

// Open begins to read a manifest, config or layer by its descriptor: from the first host that has it, and from the urls of
// the descriptor when no registry has. It fails with an Error, as reading does. The Blob ends with ctx; the caller closes it.
func (r *Repository) Open(ctx context.Context, desc ocispec.Descriptor) (*Blob, error) {
	ctx, stop := context.WithCancel(r.scoped(ctx))
	b := &Blob{repo: r, desc: desc, ctx: ctx, stop: stop}
	b.ahead.blob = b
	r.mu.Lock()
	liars, suspects := r.liars[desc.Digest], r.suspects[desc.Digest]
	r.mu.Unlock()
	hosts := slices.Concat(r.hosts, r.elsewhere(desc))
	b.round = r.round("fetch "+desc.Digest.String(), docker.HostCapabilityPull, hosts, liars, suspects)
	r.enter()
	if err := b.connect(); err != nil {
		_ = b.Close()
		return nil, err
	}
	b.gauge = gauge{since: b.round.clock.Now(), from: r.client.received.Load(), fast: r.client.options.sizes.fast}
	return b, nil
}

// elsewhere are the places that a descriptor names besides the registries. They get no credentials.
func (r *Repository) elsewhere(desc ocispec.Descriptor) []*host {
	var out []*host
	o := &r.client.options
	for _, text := range desc.URLs {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			continue
		}
		client := r.foreignClient()
		out = append(out, &host{
			id: text, place: len(r.hosts) + len(out), name: u.Host, base: u, caps: docker.HostCapabilityPull, client: client, outside: client,
			foreign: true, clock: o.clock, stall: o.Stall,
		})
	}
	return out
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
		if seg := b.ahead.head(); seg != nil && seg.start <= b.at {
			if n := b.readAhead(seg, p); n > 0 {
				return n, nil
			}
			continue // it was of no use beyond this
		}
		if n, err := b.readDirect(p); n > 0 || err != nil {
			return n, err
		}
	}
}

// readDirect reads from the reader's own connection. Nothing and no error means: try again.
func (b *Blob) readDirect(p []byte) (int, error) {
	if b.direct == nil {
		if err := b.connect(); err != nil {
			return 0, err
		}
	}
	st := b.direct
	n, took, err := st.next(p[:min(int64(len(p)), b.limit()-b.at)])
	b.advance(n, took)
	b.round.progress(st.seat, n)
	if err != nil {
		b.disconnect()
		if err := b.giveWay(st.seat, err); err != nil {
			return n, err
		}
	} else if b.at == b.limit() || st.at == st.end {
		b.disconnect()
	}
	return n, nil
}

// giveWay judges a stream that broke off, and waits as long as it should before the next.
func (b *Blob) giveWay(s *seat, err error) error {
	if err := ended(b.ctx); err != nil {
		return err
	}
	return sleep(b.ctx, b.round.clock, b.round.blame(s, faultOfError(err)))
}

func (b *Blob) readAhead(seg *segment, p []byte) int {
	start := b.round.clock.Now()
	n := seg.read(p, b.at)
	b.advance(n, b.round.clock.Now().Sub(start))
	if n == 0 || b.at == seg.end {
		b.ahead.pop()
	}
	return n
}

func (b *Blob) advance(n int, waited time.Duration) {
	b.at += int64(n)
	c := b.repo.client
	now := sample{b.round.clock.Now(), c.received.Add(int64(n))}
	if over, starved := b.gauge.note(now.at, waited, now.bytes); over && b.desc.Size > c.options.sizes.first {
		starved = starved || b.ahead.wanted
		b.ahead.wanted = starved && c.trial.allows(b, now, c.options.sizes.trial)
	}
}

// limit is where the reader's own connection ends, because somebody else fetches what follows.
func (b *Blob) limit() int64 {
	if seg := b.ahead.head(); seg != nil {
		return seg.start
	}
	return b.desc.Size
}

// connect makes the reader's own connection.
func (b *Blob) connect() error {
	r := b.request(b.at, b.limit())
	size := b.repo.client.options.sizes
	switch {
	case b.at == 0 && b.desc.Size > size.first && b.repo.client.options.Connections > 1:
		r.to, r.ranged = min(r.to, size.first), true // shows whether the host serves ranges
	case b.ahead.wanted:
		r.to = min(r.to, b.at+size.span)
	}
	err := b.round.try(b.ctx, func(s *seat) (f *fault) {
		b.direct, f = b.open(b.ctx, s, r)
		return f
	})
	b.ahead.possible = err == nil && b.direct.partial
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
	case b.repo.isManifest(b.desc.Digest):
		kind, accept = "manifests", manifestTypes
	}
	return request{
		method: http.MethodGet, path: b.repo.path() + "/" + kind + "/" + b.desc.Digest.String(), accept: accept,
		from: from, to: to, ranged: from > 0 || to < b.desc.Size,
	}
}

// Distrust says that the content is not what the digest promises. The hosts that served it are not asked for this digest
// again, by this Repository; when they were several, the last in order gets a chance to serve it alone. It returns false
// when nobody is left: opening the content again would fail.
func (b *Blob) Distrust() bool {
	served, all := b.round.servers()
	return b.repo.convict(b.desc.Digest, served, all)
}

// Liars names the hosts that are known to serve other content than the digest promises.
func (b *Blob) Liars() []string { return b.repo.namesOfLiars(b.desc) }

// Close ends all that goes on for the blob, at once. No Read may be under way. It may be called again.
func (b *Blob) Close() error {
	b.once.Do(func() {
		b.stop()
		b.disconnect()
		b.ahead.close()
		b.repo.client.trial.leave(b)
		b.repo.leave()
	})
	return nil
}

// gauge finds out whether a reader waits for its source or the other way around. What all blobs get together counts: where
// that is much, a reader that waits does so for a processor, and more connections would only take memory.
type gauge struct {
	since  time.Time
	waited time.Duration
	from   int64 // bytes that all blobs had then
	fast   int64 // bytes a second that are enough
}

const gaugeWindow = 100 * time.Millisecond

// note adds a read. When a window is over with it, it says whether the reader mostly waited for a slow source meanwhile.
func (g *gauge) note(now time.Time, waited time.Duration, all int64) (over, starved bool) {
	g.waited += waited
	span := now.Sub(g.since)
	if span < gaugeWindow {
		return false, false
	}
	starved = g.waited > span/2 && float64(all-g.from) < float64(g.fast)*span.Seconds()
	g.since, g.waited, g.from = now, 0, all
	return true, starved
}
