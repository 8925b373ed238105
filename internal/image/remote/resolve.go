package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// manifestTypes are what a registry may answer for a reference.
var manifestTypes = strings.Join([]string{
	images.MediaTypeDockerSchema2Manifest, images.MediaTypeDockerSchema2ManifestList,
	ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex, "*/*",
}, ", ")

// largestManifest bounds what is read, and not kept, of a manifest whose size or digest the registry does not say.
const largestManifest = 64 << 20

// Resolve asks what the reference names now, with the caller's own credentials. A tag goes only to hosts that are
// trusted with it (capability resolve), a digest to all. It fails with an Error.
func (r *Repository) Resolve(ctx context.Context) (ocispec.Descriptor, error) {
	caps, want, name := docker.HostCapabilityPull|docker.HostCapabilityResolve, digest.Digest(""), "latest"
	if t, ok := r.ref.(reference.Tagged); ok {
		name = t.Tag()
	}
	if d, ok := r.ref.(reference.Digested); ok {
		caps, want, name = docker.HostCapabilityPull, d.Digest(), d.Digest().String()
	}
	ask := request{path: r.path() + "/manifests/" + name, scope: r.scope(), accept: manifestTypes, proven: want != ""}
	if desc, ok := r.resolveAgain(ctx, ask, want); ok {
		return desc, nil
	}
	mirrors := r.mirrorSet("resolve "+r.ref.String(), caps, r.answers.among(r.hosts), nil, nil)
	var desc ocispec.Descriptor
	err := mirrors.try(ctx, func(s *mirrorState) (f *fault) {
		var byHead bool
		if desc, byHead, f = s.host.resolve(ctx, ask, want); f == nil {
			r.answers.take(s.host, desc, byHead)
		}
		return f
	})
	return desc, err
}

// RejectResolved records that the result of Resolve is of no use: its content is missing, or is not what was promised.
// The next Resolve asks the same host by GET if it was asked by HEAD, and else passes over it. RejectResolved returns
// false when no host is left to ask.
func (r *Repository) RejectResolved() bool {
	asked, rejected := r.answers.pass()
	return asked && rejected < len(r.hosts)
}

// resolveAgain asks by GET the host whose answer to HEAD was of no use: with some registries HEAD gives another size
// than GET for the same digest. Where that is not the reason, the host is rejected.
func (r *Repository) resolveAgain(ctx context.Context, ask request, want digest.Digest) (ocispec.Descriptor, bool) {
	h, said := r.answers.unsureOf()
	if h == nil {
		return ocispec.Descriptor{}, false
	}
	desc, f := h.resolveByGet(ctx, ask, want)
	if f != nil || desc.Digest != said.Digest || desc.Size == said.Size {
		r.answers.reject(h)
		return ocispec.Descriptor{}, false
	}
	r.answers.take(h, desc, false)
	return desc, true
}

// answers are what hosts said to Resolve, and what became of it.
type answers struct {
	mu       sync.Mutex             // guards what follows
	resolver *host                  // that answered last
	byHead   ocispec.Descriptor     // what it said, when it was a HEAD that said all
	unsure   *host                  // whose answer to HEAD was of no use: GET may give another
	rejected []*host                // whose answers were of no use
	resolved map[digest.Digest]bool // manifests, whatever their type is said to be
}

// take notes which host answered, and how.
func (a *answers) take(h *host, desc ocispec.Descriptor, byHead bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.resolved == nil {
		a.resolved = map[digest.Digest]bool{}
	}
	a.resolver, a.resolved[desc.Digest], a.byHead = h, true, ocispec.Descriptor{}
	if byHead {
		a.byHead = desc
	}
}

// pass records that the last answer was of no use. It reports whether there was one, and how many hosts are rejected.
func (a *answers) pass() (asked bool, rejected int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.resolver
	a.resolver = nil
	switch {
	case h == nil:
	case a.byHead.Digest != "":
		a.unsure = h
	default:
		a.rejected = append(a.rejected, h)
	}
	return h != nil, len(a.rejected)
}

// unsureOf takes the host that is to be asked by GET, nil for none, and what it said to HEAD.
func (a *answers) unsureOf() (*host, ocispec.Descriptor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.unsure
	a.unsure = nil
	return h, a.byHead
}

func (a *answers) reject(h *host) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rejected = append(a.rejected, h)
}

// among are the hosts whose answers were not rejected.
func (a *answers) among(hosts []*host) []*host {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(hosts), func(h *host) bool { return slices.Contains(a.rejected, h) })
}

// named reports whether d is what the reference was resolved to. Not every registry types what it serves.
func (a *answers) named(d digest.Digest) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.resolved[d]
}

// scope is that of tokens that allow reading this repository.
func (r *Repository) scope() string { return "repository:" + r.path() + ":pull" }

// resolve asks one host, by HEAD, and by GET one that does not say enough.
func (h *host) resolve(
	ctx context.Context, req request, want digest.Digest,
) (desc ocispec.Descriptor, byHead bool, f *fault) {
	req.method = http.MethodHead
	resp, f := h.ask(ctx, req, nil)
	if f == nil {
		defer drop(resp)
		desc := described(resp)
		if desc.Digest == "" {
			desc.Digest = want
		}
		if desc.Digest != "" && desc.Size > 0 {
			desc, f = checked(desc, want)
			return desc, true, f
		}
	} else if !refusesHead(f.status) {
		return ocispec.Descriptor{}, false, f
	}
	desc, f = h.resolveByGet(ctx, req, want)
	return desc, false, f
}

// refusesHead reports whether a status, in answer to HEAD, may be about the method alone: there are caches and
// registries that know only GET, and each refuses with a status of its own. Where it is about more, GET brings the
// reason in words.
func refusesHead(status int) bool {
	return status == http.StatusNotFound || status == http.StatusGone || refusesRange(status)
}

// resolveByGet reads the manifest itself: some hosts do not answer HEAD, or not with all that is needed, and a HEAD
// that is refused says nothing of the reason.
func (h *host) resolveByGet(ctx context.Context, req request, want digest.Digest) (ocispec.Descriptor, *fault) {
	req.method = http.MethodGet
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, f := h.ask(ctx, req, nil)
	if f != nil {
		return ocispec.Descriptor{}, f
	}
	defer resp.Body.Close()
	body := watched{&watch{clock: h.clock, limit: h.stall, cancel: cancel}, resp.Body}
	desc, sum := described(resp), digest.Canonical.Digester()
	if want != "" {
		sum = want.Algorithm().Digester()
	}
	var err error
	if desc.Size, err = io.Copy(sum.Hash(), io.LimitReader(body, largestManifest)); err != nil {
		return desc, h.lost(ctx, err, h.base)
	}
	desc.Digest = sum.Digest()
	return checked(desc, want)
}

// described reads what the headers of an answer say of the content.
func described(resp *http.Response) ocispec.Descriptor {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return ocispec.Descriptor{
		MediaType: strings.TrimSpace(kind), Size: resp.ContentLength,
		Digest: digest.Digest(resp.Header.Get("Docker-Content-Digest")),
	}
}

func checked(desc ocispec.Descriptor, want digest.Digest) (ocispec.Descriptor, *fault) {
	if err := desc.Digest.Validate(); err != nil {
		return desc, &fault{kind: errdefs.ErrDataLoss, text: "its answer has no valid digest"}
	}
	if want != "" && desc.Digest != want {
		return desc, &fault{kind: errdefs.ErrDataLoss, text: fmt.Sprintf("it has %s for %s", desc.Digest, want)}
	}
	return desc, nil
}
