package main

import (
	"context"
	"io"

	"github.com/containerd/errdefs"

	"berth/internal/admin"
	"berth/internal/fail"
	"berth/internal/image"
	"berth/internal/image/progress"
	"berth/internal/pod"
)

// imageService fetches, reads, writes and tells of images.
type imageService struct {
	images *image.Store
	pods   *pod.Pods
}

// Pull brings an image into the store and tells how far it is.
func (s *imageService) Pull(ctx context.Context, req *admin.PullRequest, send func(*admin.PullEvent) error) error {
	p := image.PullRequest{Reference: req.Reference, Platform: req.Platform, Progress: eventsTo(send)}
	auth := image.Auth{
		Username: req.Username, Password: req.Password, IdentityToken: req.IdentityToken,
		RegistryToken: req.RegistryToken,
	}
	if auth != (image.Auth{}) {
		p.Auth = &auth
	}
	img, err := s.images.Pull(ctx, p)
	if err != nil {
		return err
	}
	return send(complete(img))
}

// Pulls sends how far each pull is.
func (s *imageService) Pulls(_ context.Context, send func(*admin.Underway) error) error {
	for _, p := range image.Pulls(s.images) {
		u := &admin.Underway{
			Reference: p.Reference, Namespace: p.Namespace, Pod: p.Pod, Began: p.Began, Phase: p.Phase,
			Done: p.Done, Total: p.Total, Rate: p.Rate, Hosts: append([]string{}, p.Hosts()...),
			Layers: []admin.PullEvent{},
		}
		for _, l := range p.Layers {
			u.Layers = append(u.Layers, *pullEvent(l))
		}
		if err := send(u); err != nil {
			return err
		}
	}
	return nil
}

// Import reads an archive of images.
func (s *imageService) Import(ctx context.Context, archive io.Reader, send func(*admin.PullEvent) error) error {
	images, err := s.images.Import(ctx, archive, eventsTo(send))
	if err != nil {
		return err
	}
	for _, img := range images {
		if err := send(complete(img)); err != nil {
			return err
		}
	}
	return nil
}

// eventsTo sends the progress of an operation to a client.
func eventsTo(send func(*admin.PullEvent) error) func(progress.Event) {
	return func(p progress.Event) { _ = send(pullEvent(p)) } // a client that is gone ends ctx
}

func pullEvent(p progress.Event) *admin.PullEvent {
	return &admin.PullEvent{Layer: p.Layer.String(), Phase: p.Phase, Done: p.Done, Total: p.Total, Host: p.Host}
}

func complete(img image.Image) *admin.PullEvent {
	return &admin.PullEvent{Image: img.ID, Names: append(append([]string{}, img.RepoTags...), img.RepoDigests...)}
}

// Export writes images as an archive.
func (s *imageService) Export(
	ctx context.Context, req *admin.ExportRequest, archive io.Writer, send func(*admin.PullEvent) error,
) error {
	return s.images.Export(ctx, image.ExportRequest{
		Images: req.Images, Format: req.Format, Compress: req.Compress, Progress: eventsTo(send),
	}, archive)
}

// Tag gives an image one more name, or takes one away.
func (s *imageService) Tag(_ context.Context, req *admin.TagRequest) error {
	if req.Image == "" {
		return image.Untag(s.images, req.Name)
	}
	return image.Tag(s.images, req.Image, req.Name)
}

// Sweep removes layers that nothing has.
func (s *imageService) Sweep(ctx context.Context) error { return s.images.Sweep(ctx) }

// Images tells of images, of those that are asked for or of all.
func (s *imageService) Images(_ context.Context, req *admin.ImagesRequest, send func(*admin.ImageDetail) error) error {
	images := s.images.List()
	if len(req.Images) > 0 {
		images = images[:0]
		for _, ref := range req.Images {
			img, ok := s.images.Get(ref)
			if !ok {
				return fail.New(errdefs.ErrNotFound, "there is no image %s", ref)
			}
			images = append(images, img)
		}
	}
	users := s.pods.Catalog.ImageUsers()
	for _, img := range images {
		d := s.detail(img)
		for _, ctr := range users[img.ID] {
			d.Containers = append(d.Containers, string(ctr))
		}
		if req.Config {
			raw, err := img.RawConfig()
			if err != nil && len(req.Images) > 0 { // of a list, one that has gone meanwhile is told without
				return err
			}
			d.Config = raw
		}
		if err := send(d); err != nil {
			return err
		}
	}
	return nil
}

func (s *imageService) detail(img image.Image) *admin.ImageDetail {
	d := &admin.ImageDetail{
		ID: img.ID, Tags: append([]string{}, img.RepoTags...), Digests: append([]string{}, img.RepoDigests...),
		Manifest: img.Manifest, Platform: img.Platform, Artifact: img.Artifact, Size: img.Size,
		PulledAt: img.PulledAt, Pinned: img.Pinned, Durable: img.Durable, Layers: []admin.LayerDetail{},
		Containers: []string{},
	}
	for _, l := range s.images.LayersOf(img) {
		d.Layers = append(d.Layers, admin.LayerDetail{
			ID: l.ID, DiffID: l.DiffID.String(), Blob: l.Blob.String(), Size: l.Size, Disk: l.Bytes, Inodes: l.Inodes,
			Durable: l.Durable,
		})
	}
	return d
}
