package cri

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/image"
)

// PullImage fetches an image and returns its id.
func (s *Server) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (
	*runtimeapi.PullImageResponse, error) {
	if name := req.GetImage().GetRuntimeHandler(); !s.hasHandler(name) {
		return nil, fail.New(errdefs.ErrNotFound, "pull image %s: runtime handler %q is not configured on this node",
			req.GetImage().GetImage(), name)
	}
	pod := req.GetSandboxConfig().GetMetadata()
	img, err := s.Images.Pull(ctx, image.PullRequest{
		Reference: req.GetImage().GetImage(), Auth: auth(req.Auth), Namespace: pod.GetNamespace(), Pod: pod.GetName(),
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
}

// hasHandler reports whether a request may name that runtime handler. All handlers share one image store.
func (s *Server) hasHandler(name string) bool {
	return name == "" || s.HasHandler(name)
}

func auth(a *runtimeapi.AuthConfig) *image.Auth {
	if a == nil {
		return nil
	}
	return &image.Auth{
		Username: a.Username, Password: a.Password, Auth: a.Auth, ServerAddress: a.ServerAddress,
		IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
	}
}

// ImageStatus returns one image. An answer without an image says that there is none.
func (s *Server) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (
	*runtimeapi.ImageStatusResponse, error) {
	img, ok := s.Images.Get(req.GetImage().GetImage())
	if !ok {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	resp := &runtimeapi.ImageStatusResponse{Image: imageItem(img)}
	if req.Verbose {
		info, err := verbose(
			map[string]any{"info": map[string]any{"layers": img.Layers, "imageSpec": img.Config, "pulledAt": img.PulledAt}})
		if err != nil {
			return nil, err
		}
		resp.Info = info
	}
	return resp, nil
}

// ListImages lists the images, or the one that the filter names.
func (s *Server) ListImages(
	ctx context.Context, req *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: s.imageItems(ctx, req.Filter)}, nil
}

func (s *Server) imageItems(ctx context.Context, f *runtimeapi.ImageFilter) (items []*runtimeapi.Image) {
	defer func() { pinHidden(s.hidden(ctx), items) }()
	if name := f.GetImage().GetImage(); name != "" {
		if img, ok := s.Images.Get(name); ok {
			items = append(items, imageItem(img))
		}
		return items
	}
	for _, img := range s.Images.List() {
		items = append(items, imageItem(img))
	}
	return items
}

// RemoveImage removes an image with all its names. Removing an unknown image succeeds, as CRI requires.
func (s *Server) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (
	*runtimeapi.RemoveImageResponse, error) {
	if err := s.Images.Remove(ctx, req.GetImage().GetImage()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo tells how much room images take, and what containers write. On one file system both are one value: the
// kubelet tells from the paths whether there are two.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	bytes, inodes, _ := s.Images.Usage()
	writable := s.meter().Usage()
	images, containers := fileSystem(s.ImagesRoot, bytes, inodes),
		fileSystem(s.ContainersRoot, writable.Bytes, writable.Inodes)
	if s.ImagesRoot == s.ContainersRoot {
		images = fileSystem(s.ImagesRoot, bytes+writable.Bytes, inodes+writable.Inodes)
		containers = images
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{images},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{containers},
	}, nil
}

// fileSystem is stamped with the time of the question: a kubelet whose disk is full evicts upon a value only when it is
// newer than the last, and what the file system has left it measures itself.
func fileSystem(path string, bytes, inodes uint64) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: path},
		UsedBytes: &runtimeapi.UInt64Value{Value: bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
	}
}

func imageItem(img image.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{
		Id: img.ID, RepoTags: img.RepoTags, RepoDigests: img.RepoDigests, Size: img.Size, Pinned: img.Pinned,
	}
	// The kubelet refuses to run a container as root by uid, or must be told the name that it cannot judge.
	user, _, _ := strings.Cut(img.Config.Config.User, ":")
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		out.Uid = &runtimeapi.Int64Value{Value: uid}
	} else if user != "" {
		out.Username = user
	} else {
		out.Uid = &runtimeapi.Int64Value{Value: 0}
	}
	return out
}
