package cri

import (
	"context"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
)

// PullImage fetches an image and returns its id.
func (s *Server) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	img, err := s.Images.Pull(ctx, image.PullRequest{Reference: req.GetImage().GetImage(), Auth: auth(req.Auth)})
	if err != nil {
		return nil, ToStatus(err)
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
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

// ImageStatus tells of one image; no image in the answer says that there is none.
func (s *Server) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	img, ok := s.Images.Get(req.GetImage().GetImage())
	if !ok {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	resp := &runtimeapi.ImageStatusResponse{Image: imageItem(img)}
	if req.Verbose {
		info, err := verbose(map[string]any{"info": map[string]any{"layers": img.Layers, "imageSpec": img.Config, "pulledAt": img.PulledAt}})
		if err != nil {
			return nil, ToStatus(err)
		}
		resp.Info = info
	}
	return resp, nil
}

// ListImages lists the images, or the one that the filter names.
func (s *Server) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	if name := req.GetFilter().GetImage().GetImage(); name != "" {
		img, ok := s.Images.Get(name)
		if !ok {
			return &runtimeapi.ListImagesResponse{}, nil
		}
		return &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{imageItem(img)}}, nil
	}
	resp := &runtimeapi.ListImagesResponse{}
	for _, img := range s.Images.List() {
		resp.Images = append(resp.Images, imageItem(img))
	}
	return resp, nil
}

// RemoveImage removes an image under all its names. What is not there is removed already.
func (s *Server) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if err := s.Images.Remove(ctx, req.GetImage().GetImage()); err != nil {
		return nil, ToStatus(err)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo tells how much room images take, and where containers write.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	bytes, inodes, at := s.Images.Usage()
	writable := s.Pods.Usage()
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems: []*runtimeapi.FilesystemUsage{{
			Timestamp: at.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: s.ImagesRoot},
			UsedBytes: &runtimeapi.UInt64Value{Value: bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
		}},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{{
			Timestamp: writable.At.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: s.ContainersRoot},
			UsedBytes: &runtimeapi.UInt64Value{Value: writable.Bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: writable.Inodes},
		}},
	}, nil
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
