package cri

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/sandbox"
)

// CreateContainer makes a container in a pod.
func (s *Server) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (
	*runtimeapi.CreateContainerResponse, error) {
	podID, err := s.Catalog.ID(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	if err := checkPrivileged(s.Catalog.Get, podID, req); err != nil {
		return nil, err
	}
	id, err := s.Pods.Create(ctx, podID, req.Config)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: string(id)}, nil
}

// checkPrivileged refuses a privileged container of a pod that is privileged neither by the request nor by its record.
// The pod of the request counts, too, because a kubelet asks for a privileged ephemeral container (kubectl debug) in a
// sandbox that was run before there was any. Nothing but this check depends on the field of the pod.
func checkPrivileged(
	get func(sandbox.ID) (*sandbox.Record, error), pod sandbox.ID, req *runtimeapi.CreateContainerRequest,
) error {
	if !req.GetConfig().GetLinux().GetSecurityContext().GetPrivileged() || privileged(req.GetSandboxConfig()) {
		return nil
	}
	r, err := get(pod)
	if err != nil || privileged(r.Config.Get()) {
		return err
	}
	return sandbox.InContainer("", req.Config.GetMetadata().GetName(), pod, fail.New(errdefs.ErrInvalidArgument,
		"a privileged container needs a privileged pod: set privileged in the security context of sandbox_config, or of "+
			"the pod when it is run"))
}

func privileged(pod *runtimeapi.PodSandboxConfig) bool {
	return pod.GetLinux().GetSecurityContext().GetPrivileged()
}

// StartContainer starts a created container.
func (s *Server) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (
	*runtimeapi.StartContainerResponse, error) {
	id, err := s.Catalog.ContainerID(req.ContainerId)
	if err == nil {
		err = s.Pods.Start(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer ends a container, by force after the timeout. Stopping an unknown container succeeds, as CRI requires.
func (s *Server) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (
	*runtimeapi.StopContainerResponse, error) {
	timeout := seconds(req.Timeout)
	err := end(s.Catalog.ContainerID, req.ContainerId, func(id sandbox.ID) error {
		return s.Pods.StopContainer(ctx, id, timeout)
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// longest is the longest timeout of a request. What is longer does not fit into a Duration, or would overflow where
// something is added to it, and so end at once.
const longest = 100 * 365 * 24 * time.Hour

// seconds is a timeout of CRI, which is none where it is negative.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(longest/time.Second))) * time.Second
}

// RemoveContainer removes a container, by force if it runs. Removing an unknown container succeeds, as CRI requires.
func (s *Server) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (
	*runtimeapi.RemoveContainerResponse, error) {
	err := end(s.Catalog.ContainerID, req.ContainerId, func(id sandbox.ID) error {
		return s.Pods.RemoveContainer(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ReopenContainerLog makes the container's log go to a new file.
func (s *Server) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (
	*runtimeapi.ReopenContainerLogResponse, error) {
	id, err := s.Catalog.ContainerID(req.ContainerId)
	if err == nil {
		err = s.Pods.Sessions.ReopenLog(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// ExecSync runs a command in a container and returns its output.
func (s *Server) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	id, err := s.Catalog.ContainerID(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if req.Timeout < 0 {
		return nil, fail.New(errdefs.ErrInvalidArgument, "exec: timeout %d is negative", req.Timeout)
	}
	out, err := s.Pods.Sessions.ExecSync(ctx, id, req.Cmd, seconds(req.Timeout))
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: out.Stdout, Stderr: out.Stderr, ExitCode: int32(out.ExitCode)}, nil
}

// ListContainers lists containers, the newest first.
func (s *Server) ListContainers(
	ctx context.Context, req *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.containerItems(ctx, req.Filter)}, nil
}

func (s *Server) containerItems(
	ctx context.Context, f *runtimeapi.ContainerFilter,
) (items []*runtimeapi.Container) {
	for _, r := range s.listed(ctx) {
		if !strings.HasPrefix(string(r.ID), f.GetPodSandboxId()) {
			continue
		}
		for _, c := range r.Containers {
			if !c.Listed() {
				continue
			}
			if item := s.containerItem(r, c); matchContainer(item, f) {
				items = append(items, item)
			}
		}
	}
	slices.SortFunc(items, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	return items
}

func matchContainer(c *runtimeapi.Container, f *runtimeapi.ContainerFilter) bool {
	return strings.HasPrefix(c.Id, f.GetId()) &&
		(f.GetState() == nil || f.State.State == c.State) &&
		matchLabels(c.Labels, f.GetLabelSelector())
}

// ContainerStatus returns the status of a container.
func (s *Server) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (
	*runtimeapi.ContainerStatusResponse, error) {
	id, err := s.Catalog.ContainerID(req.ContainerId)
	if err != nil {
		return nil, err
	}
	r, c, err := s.Catalog.GetContainer(id)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: s.containerStatus(r, c)}
	if req.Verbose {
		if resp.Info, err = verbose(map[string]any{"info": s.containerInfo(r, c)}); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (s *Server) containerItem(r *sandbox.Record, c *sandbox.Container) *runtimeapi.Container {
	cfg := c.Config.Get()
	return &runtimeapi.Container{
		Id: string(c.ID), PodSandboxId: string(r.ID), Metadata: cfg.Metadata, Image: cfg.Image, ImageRef: s.imageRef(c),
		ImageId: c.Image,
		State:   c.State.OfContainer(), CreatedAt: c.CreatedAt.UnixNano(), Labels: cfg.Labels, Annotations: cfg.Annotations,
	}
}

func (s *Server) containerStatus(r *sandbox.Record, c *sandbox.Container) *runtimeapi.ContainerStatus {
	cfg := c.Config.Get()
	st := &runtimeapi.ContainerStatus{
		Id: string(c.ID), Metadata: cfg.Metadata, State: c.State.OfContainer(), CreatedAt: c.CreatedAt.UnixNano(),
		StartedAt: nanos(c.StartedAt), FinishedAt: nanos(c.FinishedAt), ExitCode: c.ExitCode, Reason: c.Reason,
		Message: c.Message,
		Image:   s.imageSpec(c), ImageRef: s.imageRef(c), ImageId: c.Image, Labels: cfg.Labels, Annotations: cfg.Annotations,
		Mounts: mounts(c), LogPath: r.LogPath(c), User: containerUser(c), StopSignal: sandbox.CRISignal(c.StopSignal),
	}
	if res := c.Limits(); res != nil {
		st.Resources = &runtimeapi.ContainerResources{Linux: res}
	}
	return st
}

// imageRef is the container's image as <repository>@<digest>, which a kubelet shows as imageID in a pod's status. Of a
// container of an earlier release, whose record has none, it is by what the image is called now.
func (s *Server) imageRef(c *sandbox.Container) string {
	if c.ImageRef != "" {
		return c.ImageRef
	}
	if img, ok := s.Images.Get(c.Image); ok {
		asked := c.Config.Get().GetImage()
		return img.RepoDigest(asked.GetUserSpecifiedImage(), asked.GetImage())
	}
	return c.Image
}

// mounts is what was asked for, with the id of the image where one is the source: docs/adr/0030 says why it is not the
// digest in a repository.
func mounts(c *sandbox.Container) []*runtimeapi.Mount {
	asked := c.Config.Get().Mounts
	if len(c.Volumes) == 0 {
		return asked
	}
	out := slices.Clone(asked)
	for _, v := range c.Volumes {
		m := proto.Clone(asked[v.Mount]).(*runtimeapi.Mount)
		m.Image.ImageRef = v.Image
		out[v.Mount] = m
	}
	return out
}

// containerStatuses tells of all containers of a pod that a kubelet may see, the newest first: where it takes them from
// a pod's status it counts on that, and with another order would make the last attempt of a container again.
func (s *Server) containerStatuses(r *sandbox.Record) (all []*runtimeapi.ContainerStatus) {
	for _, c := range slices.Backward(r.Containers) {
		if c.Listed() {
			all = append(all, s.containerStatus(r, c))
		}
	}
	return all
}

// imageSpec names the image as people know it: by a tag, else by a digest, else as the container was made.
func (s *Server) imageSpec(c *sandbox.Container) *runtimeapi.ImageSpec {
	asked := c.Config.Get().Image
	spec := &runtimeapi.ImageSpec{Image: asked.Image, Annotations: asked.Annotations,
		UserSpecifiedImage: asked.UserSpecifiedImage, RuntimeHandler: asked.RuntimeHandler}
	if img, ok := s.Images.Get(c.Image); ok {
		if names := append(slices.Clone(img.RepoTags), img.RepoDigests...); len(names) > 0 &&
			!slices.Contains(names, asked.Image) {
			spec.Image = names[0]
		}
	}
	return spec
}

func containerUser(c *sandbox.Container) *runtimeapi.ContainerUser {
	u := &runtimeapi.LinuxContainerUser{Uid: int64(c.User.UID), Gid: int64(c.User.GID)}
	for _, g := range c.User.AdditionalGids {
		u.SupplementalGroups = append(u.SupplementalGroups, int64(g))
	}
	return &runtimeapi.ContainerUser{Linux: u}
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// containerInfo is what a verbose status adds.
func (s *Server) containerInfo(r *sandbox.Record, c *sandbox.Container) map[string]any {
	info := map[string]any{
		"sandboxID": r.ID, "state": c.State, "pid": c.Process.PID, "runtime": r.Runtime, "cgroup": c.Cgroup,
		"stopSignal": c.StopSignal, "layers": c.Layers, "config": c.Config,
	}
	if spec, err := s.Pods.Sessions.RuntimeSpec(c.ID); err == nil {
		info["runtimeSpec"] = spec
	}
	if c.Stuck != nil {
		info["stuck"] = c.Stuck
	}
	if u, ok := s.meter().StorageOf(r, c); ok {
		info["storage"] = u.Info()
	}
	if c.LogLimit != nil {
		info["log"] = s.meter().Logs.Info(c)
	}
	if logged, known := s.Pods.Sessions.Logged(c.ID); known {
		info["logged"] = logged
	}
	return info
}
