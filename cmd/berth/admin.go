package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/admin"
	"berth/internal/config"
	"berth/internal/fail"
	"berth/internal/image"
	"berth/internal/limit"
	"berth/internal/pod"
	"berth/internal/runtime"
	"berth/internal/session"
	"berth/internal/stream"
)

// service is what the daemon does for the command line beside CRI.
type service struct{ *node }

// Info tells about the daemon.
func (n service) Info(context.Context) (*admin.InfoResponse, error) {
	facts, err := json.Marshal(
		map[string]any{"facts": n.facts, "runtimes": n.handlers.Load().found, "defaultRuntime": n.handlers.Load().fallback})
	if err != nil {
		return nil, err
	}
	resp := &admin.InfoResponse{Version: version, Instance: n.cfg.Instance(), Config: n.inForce.Load().TOML(), Host: facts}
	for _, s := range n.timeline.Steps() {
		resp.Startup = append(resp.Startup, admin.StartupStep{Name: s.Name, Took: s.Took})
	}
	resp.Problems, resp.Storage = problems(n.node), limited(n.pods)
	resp.NRI = nriOf(n.node)
	for _, b := range budgets(n.node) {
		resp.Limits = append(resp.Limits, admin.Limit{Name: b.Name, Used: b.Used, Limit: b.Limit})
	}
	return resp, nil
}

// problems are what a person should look at.
func problems(n *node) (all []admin.Problem) {
	for _, p := range n.pods.Problems() {
		all = append(all, admin.Problem{Pod: string(p.Pod), Message: p.What, Since: p.Since})
	}
	for _, s := range n.driver.Monitors().Silent {
		all = append(all, admin.Problem{Pod: s.Pod, Message: s.What, Since: s.Since})
	}
	all = append(all, n.preload.problems()...)
	if s := n.memory.Status(); s.Problem != "" {
		all = append(all, admin.Problem{Message: s.Problem, Since: s.Since})
	}
	for _, s := range n.helpers.Stuck() {
		text := fmt.Sprintf("helper %s: %v; what it was run for is refused until then", s.Name, s.StuckError)
		all = append(all, admin.Problem{Message: text, Since: s.Since})
	}
	return all
}

// budgets returns the limits that all share, with what is used of them.
func budgets(n *node) []limit.Budget {
	own := []limit.Budget{memoryBudget(n.memory)}
	return slices.Concat(image.Budgets(n.images), n.face.Streams.Budgets(), n.callers.Budgets(), own)
}

// nriOf is how the Node Resource Interface is.
func nriOf(n *node) *admin.NRI {
	switch {
	case n.plugins != nil:
		s := n.plugins.Status()
		return &admin.NRI{
			On: s.On, Failed: s.Failed, Socket: s.Socket, Plugins: s.Plugins, Names: s.Names, Problems: s.Problems,
		}
	case n.cfg.NRI.Enable != nil:
		return &admin.NRI{Off: "nri.enable is false"}
	}
	root := config.Default().Root
	return &admin.NRI{Off: "it is on by itself for the root " + root + " only, and nri.enable is not set"}
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
func (n service) Reload(ctx context.Context) (*admin.ReloadResponse, error) {
	changes, err := reloader(n).reload(ctx)
	if err != nil {
		return nil, fail.New(errdefs.ErrFailedPrecondition, "%w", err)
	}
	resp := &admin.ReloadResponse{Changes: []admin.Change{}}
	for _, c := range changes {
		resp.Changes = append(resp.Changes, admin.Change(c))
	}
	return resp, nil
}

// Pull brings an image into the store and tells how far it is.
func (n service) Pull(ctx context.Context, req *admin.PullRequest, send func(*admin.PullEvent) error) error {
	p := image.PullRequest{Reference: req.Reference, Platform: req.Platform, Progress: eventsTo(send)}
	auth := image.Auth{
		Username: req.Username, Password: req.Password, IdentityToken: req.IdentityToken,
		RegistryToken: req.RegistryToken,
	}
	if auth != (image.Auth{}) {
		p.Auth = &auth
	}
	img, err := n.images.Pull(ctx, p)
	if err != nil {
		return err
	}
	return send(complete(img))
}

// Attach joins the streams of a container.
func (n service) Attach(ctx context.Context, req *admin.AttachRequest, recv func() (*admin.AttachInput, error),
	send func(*admin.AttachOutput) error) error {
	id, err := n.pods.Catalog.ContainerID(req.Container)
	if err != nil {
		return err
	}
	in := newTypeahead()
	defer in.Close()
	go input(recv, in, func(s admin.Size) {
		if err := n.pods.Sessions.Resize(ctx, id, s.Width, s.Height); err != nil {
			n.log.Debug("a terminal could not be resized", "container", id, "error", err)
		}
	})
	a := runtime.Attach{
		Stdout: writer(func(p []byte) error { return send(&admin.AttachOutput{Stdout: p}) }),
		Stderr: writer(func(p []byte) error { return send(&admin.AttachOutput{Stderr: p}) }),
		Ready:  func() { _ = send(&admin.AttachOutput{Ready: true}) },
	}
	if req.Stdin {
		a.Stdin = in
	}
	return n.pods.Sessions.Attach(ctx, id, a)
}

// Exec runs a command in a container.
func (n service) Exec(ctx context.Context, req *admin.ExecRequest, recv func() (*admin.AttachInput, error),
	send func(*admin.AttachOutput) error) error {
	id, err := n.pods.Catalog.ContainerID(req.Container)
	if err != nil {
		return err
	}
	if req.Detach {
		return execDetached(ctx, n.node, id, req)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newTypeahead()
	defer in.Close()
	sizes := make(chan admin.Size)
	go input(recv, in, func(s admin.Size) {
		select {
		case sizes <- s:
		case <-ctx.Done():
		}
	})
	s := session.Session{
		Cmd: req.Command, TTY: req.TTY, As: session.As{User: req.User, Dir: req.Dir, Env: req.Env},
		Stdout: writer(func(p []byte) error { return send(&admin.AttachOutput{Stdout: p}) }),
		Resize: func() (uint16, uint16, bool) {
			select {
			case s := <-sizes:
				return s.Width, s.Height, true
			case <-ctx.Done():
				return 0, 0, false
			}
		},
	}
	if !req.TTY {
		s.Stderr = writer(func(p []byte) error { return send(&admin.AttachOutput{Stderr: p}) })
		go func() { // nobody else takes the sizes
			for _, _, ok := s.Resize(); ok; _, _, ok = s.Resize() {
			}
		}()
	}
	if req.Stdin {
		s.Stdin = in
	}
	code, err := n.pods.Sessions.Session(ctx, id, s)
	if err != nil {
		return err
	}
	return send(&admin.AttachOutput{Exit: &code})
}

// PortForward connects to a port of a pod.
func (n service) PortForward(ctx context.Context, req *admin.PortForwardRequest, recv func() (*admin.PortData, error),
	send func(*admin.PortData) error) error {
	id, err := n.pods.Catalog.ID(req.Pod)
	if err != nil {
		return err
	}
	dial, cancel := context.WithTimeout(ctx, dialTimeout)
	conn, err := streamNode(n).Dial(dial, string(id), req.Port)
	cancel()
	if err != nil {
		return fmt.Errorf("forward port %d of pod %s: %w", req.Port, id, err)
	}
	defer conn.Close()
	if err := send(&admin.PortData{}); err != nil {
		return err
	}
	up := make(chan error, 1)
	go func() { up <- receivePort(conn, recv) }()
	err = admin.SendPort(conn, send, func() {})
	if err != nil {
		return fmt.Errorf("port %d of pod %s: %w", req.Port, id, err)
	}
	return <-up
}

// dialTimeout bounds a connection to a port of a pod.
const dialTimeout = 10 * time.Second

// receivePort gives a pod what a client sends, and its end. When the client is gone the connection is cut.
func receivePort(conn stream.Conn, recv func() (*admin.PortData, error)) error {
	for {
		d, err := recv()
		if err != nil {
			stream.Reset(conn)
			return err
		}
		if _, err := conn.Write(d.Data); err != nil {
			return err
		}
		if d.End {
			return conn.CloseWrite()
		}
	}
}

type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) {
	if err := w(append([]byte(nil), p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Check verifies every record and every stored image.
func (n service) Check(ctx context.Context, req *admin.CheckRequest, send func(*admin.Finding) error) error {
	for _, p := range problems(n.node) {
		if err := send(&admin.Finding{Pod: p.Pod, Path: p.Path, Problem: p.Message}); err != nil {
			return err
		}
	}
	return n.images.Check(ctx, req.Repair, func(f image.Finding) {
		_ = send(&admin.Finding{Image: f.Image, Layer: f.Layer, Path: f.Path, Problem: f.Problem, Repaired: f.Repaired})
	})
}
