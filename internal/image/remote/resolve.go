package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

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

// Resolve asks what the reference names now, with the caller's own credentials. A tag goes only to hosts that are trusted
// with it (capability resolve), a digest to all. It fails with an Error.
func (r *Repository) Resolve(ctx context.Context) (ocispec.Descriptor, error) {
	caps, want, name := docker.HostCapabilityPull|docker.HostCapabilityResolve, digest.Digest(""), "latest"
	if t, ok := r.ref.(reference.Tagged); ok {
		name = t.Tag()
	}
	if d, ok := r.ref.(reference.Digested); ok {
		caps, want, name = docker.HostCapabilityPull, d.Digest(), d.Digest().String()
	}
	ctx = r.scoped(ctx)
	round := r.round("resolve "+r.ref.String(), caps, r.trusted(), nil, nil)
	var desc ocispec.Descriptor
	err := round.try(ctx, func(s *seat) (f *fault) {
		ask := request{path: r.path() + "/manifests/" + name, accept: manifestTypes, proven: want != ""}
		desc, f = s.host.resolve(ctx, ask, want)
		if f == nil {
			r.mu.Lock()
			r.resolver, r.resolved[desc.Digest] = s.host, true
			r.mu.Unlock()
		}
		return f
	})
	return desc, err
}

// Doubt says that what Resolve returned led nowhere: its content is not there, or is not what was promised. The next
// Resolve passes over the host that answered. It returns false when no other host is left to be asked.
func (r *Repository) Doubt() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resolver == nil {
		return false
	}
	r.doubted, r.resolver = append(r.doubted, r.resolver), nil
	return len(r.doubted) < len(r.hosts)
}

// trusted are the hosts whose answers to Resolve are not doubted.
func (r *Repository) trusted() []*host {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.hosts), func(h *host) bool { return slices.Contains(r.doubted, h) })
}

// scoped makes requests ask for tokens that allow reading this repository.
func (r *Repository) scoped(ctx context.Context) context.Context {
	return docker.WithScope(ctx, "repository:"+r.path()+":pull")
}

// resolve asks one host, by HEAD, and by GET one that does not say enough.
func (h *host) resolve(ctx context.Context, req request, want digest.Digest) (ocispec.Descriptor, *fault) {
	req.method = http.MethodHead
	resp, f := h.ask(ctx, req, nil)
	if f == nil {
		defer drop(resp)
		desc := described(resp)
		if desc.Digest == "" {
			desc.Digest = want
		}
		if desc.Digest != "" && desc.Size > 0 {
			return h.checked(desc, want)
		}
	} else if !refusesHead(f.status) {
		return ocispec.Descriptor{}, f
	}
	return h.resolveByGet(ctx, req, want)
}

// refusesHead says whether a status, in answer to HEAD, may be about the method alone: there are caches and registries that know
// only GET, and each refuses with a status of its own.
func refusesHead(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	}
	return false
}

// resolveByGet reads the manifest itself: some hosts do not answer HEAD, or not with all that is needed, and a HEAD that is
// refused says nothing of the reason.
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
	return h.checked(desc, want)
}

// described reads what the headers of an answer say of the content.
func described(resp *http.Response) ocispec.Descriptor {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return ocispec.Descriptor{
		MediaType: strings.TrimSpace(kind), Size: resp.ContentLength,
		Digest: digest.Digest(resp.Header.Get("Docker-Content-Digest")),
	}
}

func (h *host) checked(desc ocispec.Descriptor, want digest.Digest) (ocispec.Descriptor, *fault) {
	if err := desc.Digest.Validate(); err != nil {
		return desc, &fault{kind: errdefs.ErrDataLoss, text: "its answer has no valid digest"}
	}
	if want != "" && desc.Digest != want {
		return desc, &fault{kind: errdefs.ErrDataLoss, text: fmt.Sprintf("it has %s for %s", desc.Digest, want)}
	}
	return desc, nil
}
