package main

import (
	"context"
	"encoding/json"

	"github.com/containerd/errdefs"

	"berth/internal/admin"
	"berth/internal/fail"
	"berth/internal/host"
	"berth/internal/image"
	"berth/internal/pod"
	"berth/internal/telemetry"
)

// service is what the daemon does for the command line beside CRI. It is registered before the parts of the daemon are
// there; no call reaches it until then.
type service struct {
	*daemonService
	*imageService
	*processService
}

// daemonService tells of the daemon, has it reload its configuration, and checks what it has stored.
type daemonService struct {
	instance string
	facts    host.Facts
	settings *settings
	timeline *telemetry.Timeline
	pods     *pod.Pods
	images   *image.Store
	problems func() []admin.Problem // what a person should look at
	limits   func() []admin.Limit   // those that all share
	nri      func() *admin.NRI
	modules  func() (appArmor, seLinux *admin.Module)
	reloader *reloader
}

func (n *node) daemonService(r *reloader) *daemonService {
	return &daemonService{
		instance: n.cfg.Instance(), facts: n.facts, settings: n.settings, timeline: n.timeline, pods: n.pods,
		images: n.images, reloader: r,
		problems: func() []admin.Problem { return problems(n) },
		limits:   func() []admin.Limit { return limitsOf(n) },
		nri:      func() *admin.NRI { return nriOf(n) },
		modules: func() (appArmor, seLinux *admin.Module) {
			return n.confinement.appArmor(), n.confinement.seLinux()
		},
	}
}

// Info tells about the daemon.
func (s *daemonService) Info(context.Context) (*admin.InfoResponse, error) {
	handlers := s.settings.handlers.Load()
	facts, err := json.Marshal(map[string]any{
		"facts": s.facts, "runtimes": handlers.found, "defaultRuntime": handlers.fallback,
	})
	if err != nil {
		return nil, err
	}
	resp := &admin.InfoResponse{
		Version: version, Instance: s.instance, Config: s.settings.config.Load().TOML(), Host: facts,
		Problems: s.problems(), Storage: limited(s.pods), NRI: s.nri(), Limits: s.limits(),
	}
	resp.AppArmor, resp.SELinux = s.modules()
	for _, step := range s.timeline.Steps() {
		resp.Startup = append(resp.Startup, admin.StartupStep{Name: step.Name, Took: step.Took})
	}
	return resp, nil
}

// limited are the containers with limits of what they write to their roots, by their records: no disk is asked.
func limited(pods *pod.Pods) (all []admin.ContainerStorage) {
	for _, r := range pods.Catalog.List() {
		for _, c := range r.Containers {
			if c.Listed() && !c.Storage.Unlimited() {
				all = append(all, admin.ContainerStorage{
					ID: string(c.ID), LimitBytes: c.Storage.Bytes, LimitInodes: c.Storage.Inodes,
				})
			}
		}
	}
	return all
}

// Reload takes over the configuration files as they are now.
func (s *daemonService) Reload(ctx context.Context) (*admin.ReloadResponse, error) {
	changes, err := s.reloader.reload(ctx)
	if err != nil {
		return nil, fail.New(errdefs.ErrFailedPrecondition, "%w", err)
	}
	resp := &admin.ReloadResponse{Changes: []admin.Change{}}
	for _, c := range changes {
		resp.Changes = append(resp.Changes, admin.Change(c))
	}
	return resp, nil
}

// Check verifies every record and every stored image.
func (s *daemonService) Check(ctx context.Context, req *admin.CheckRequest, send func(*admin.Finding) error) error {
	for _, p := range s.problems() {
		if err := send(&admin.Finding{Pod: p.Pod, Path: p.Path, Problem: p.Message}); err != nil {
			return err
		}
	}
	return s.images.Check(ctx, req.Repair, func(f image.Finding) {
		_ = send(&admin.Finding{
			Image: f.Image, Layer: f.Layer, Path: f.Path, Problem: f.Problem, Repaired: f.Repaired,
		})
	})
}
