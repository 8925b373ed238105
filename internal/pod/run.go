package pod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/bundle"
	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/op"
	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// errUndone is returned to a caller that joined an operation which was then rolled back; the caller retries.
var errUndone = errors.New("it was undone meanwhile")

// Run makes a pod and starts it: its namespaces, its network, its monitor. The same request made again joins the one in
// flight, or gets the id of the pod that it made; a different one under the same name undoes what the first one has
// made, unless that is in use.
func (s *Pods) Run(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (sandbox.ID, error) {
	if err := validatePod(cfg); err != nil {
		return "", err
	}
	if err := s.bundle.CheckRequest(cfg); err != nil {
		return "", err
	}
	h, options, err := s.bundle.Handlers.Spec(handler)
	if err != nil {
		return "", sandbox.InPod(cfg.Metadata, err)
	}
	if s.cfg.Refused != nil {
		if err := s.cfg.Refused(handler); err != nil {
			return "", sandbox.InPod(cfg.Metadata, err)
		}
	}
	if err := s.bundle.CheckLimits(cfg, options); err != nil {
		return "", sandbox.InPod(cfg.Metadata, err)
	}
	if sandbox.UserNamespace(cfg) != nil {
		if err := s.cfg.UserNS(handler); err != nil {
			return "", sandbox.InPod(cfg.Metadata, err)
		}
	}
	want := request{cfg: cfg, handler: handler, using: h, digest: digest(cfg, handler)}
	for {
		p, err := s.Catalog.claim(cfg.Metadata, func() (*pod, error) { return s.newPod(want) })
		if err != nil {
			return "", err
		}
		if !want.servedBy(p) {
			if err := s.replace(ctx, p); err != nil {
				return "", err
			}
			continue
		}
		err = p.lane.Do(s.worker.ctx, ctx, op.Op{Kind: opCreate, Key: want.digest, Abandon: s.cfg.Abandon, Run: p.create})
		switch {
		case errors.Is(err, errUndone):
			continue
		case err != nil:
			return "", err
		}
		if ctx.Err() == nil {
			p.answered.Store(true)
		}
		return p.id, nil
	}
}

type request struct {
	cfg     *runtimeapi.PodSandboxConfig
	handler string
	using   runtime.Handler
	digest  string
}

// servedBy reports whether the request may join the pod's creation, or have the pod that came of it.
func (want request) servedBy(p *pod) bool {
	r := p.record()
	return r.Digest == want.digest && (r.State == sandbox.Ready || r.State == sandbox.Creating && p.ours)
}

// digest identifies a request.
func digest(m proto.Message, more ...string) string {
	data, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m) // fails only for invalid UTF-8, which gRPC refuses
	h := sha256.New()
	h.Write(data)
	for _, s := range more {
		h.Write([]byte{0})
		h.Write([]byte(s))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// newPod makes the pod of a request. Nothing of it is on the host yet. The catalog's mu is held.
func (s *Pods) newPod(want request) (*pod, error) {
	m, err := sandbox.NewPodConfig(want.cfg)
	if err != nil {
		return nil, fail.New(errdefs.ErrInvalidArgument, "pod configuration: %w", err)
	}
	labels, err := s.bundle.Labels.New(want.cfg, s.Catalog.levels)
	if err != nil {
		return nil, err
	}
	p := s.makePod(&sandbox.Record{
		ID: sandbox.NewID(), State: sandbox.Creating, CreatedAt: s.Catalog.index.Load().created(want.cfg.Metadata, ""),
		Boot: s.cfg.Boot, Handler: want.handler, Runtime: want.using.Name, Using: &want.using, Digest: want.digest,
		Config: m, SELinux: labels,
	}, true)
	close(p.adopted)
	s.bundle.WarnConverted(p.record())
	return p, nil
}

// replace undoes p, unless it is in use, so that a different request can have its name.
func (s *Pods) replace(ctx context.Context, p *pod) error {
	r := p.record()
	if r.State == sandbox.Ready && (p.answered.Load() || len(r.Containers) > 0) {
		m := r.Config.Get().Metadata
		return fail.New(errdefs.ErrAlreadyExists,
			"pod %s/%s (uid %s, attempt %d) runs already as %s with another configuration; stop and remove it first",
			m.GetNamespace(), m.GetName(), m.GetUid(), m.GetAttempt(), p.id)
	}
	err := removePod(ctx, p)
	if ctx.Err() == nil {
		// An undo that is stuck goes on in the background, under its own id.
		s.Catalog.reindex(func(x *index) { x.release(p) })
		return nil
	}
	return err
}

// create runs in the pod's lane.
func (p *pod) create(ctx context.Context) error {
	switch p.record().State {
	case sandbox.Ready:
		return nil
	case sandbox.Creating:
	default:
		return errUndone
	}
	m := p.plan()
	err := m.steps().Forward(ctx)
	if err == nil && p.initEnded.Load() {
		err = errInitEnded
	}
	if err == nil {
		err = p.update(ctx, "pod.ready", func(r *sandbox.Record) error {
			r.IPs, r.Init = m.ips, m.init
			return r.MoveTo(sandbox.Ready)
		})
	}
	if err == nil {
		if p.initEnded.Load() { // meanwhile; it is told twice at worst
			p.initExited()
		}
		return nil
	}
	meta := p.record().Config.Get().Metadata
	err = sandbox.InPod(meta, diskspace.Explain(err, p.cfg.Root, diskspace.MakeRoom))
	if undo := p.undo(op.Trace(p.work.ctx, ctx)); undo != nil {
		err = fmt.Errorf("%w; and %w, which is tried again in the background", err, undo)
	}
	return err
}

// errInitEnded is why a pod whose own container did not live does not become ready: no container could join it.
var errInitEnded = errors.New("the container that stands for the pod has ended while the pod was made: " +
	"was it killed, for its memory or by somebody? the kernel's log tells; the pod is unmade, and can be asked for again")

// undo removes a pod that never became ready.
func (p *pod) undo(ctx context.Context) error {
	err := p.publish("pod.undo", func(r *sandbox.Record) error {
		if r.State == sandbox.Removing {
			return nil
		}
		return r.MoveTo(sandbox.Removing)
	})
	if err == nil {
		err = diskspace.Explain(p.plan().steps().Backward(ctx), p.cfg.Root, diskspace.MakeRoom)
	}
	if err == nil {
		p.notifier.podRemoved(ctx, p)
		p.s.Catalog.reindex(func(x *index) { x.forget(p) })
		p.ended()
		return nil
	}
	if p.work.ctx.Err() == nil {
		p.s.Catalog.reindex(func(x *index) { x.release(p) })
		p.stuck(err, func() error { return removePod(p.work.ctx, p) })
	}
	return err
}

// validatePod refuses a request from which no pod can be made.
func validatePod(cfg *runtimeapi.PodSandboxConfig) error {
	m := cfg.GetMetadata()
	if m.GetName() == "" || m.GetUid() == "" {
		return fail.New(errdefs.ErrInvalidArgument, "pod configuration: metadata with a name and a uid is required")
	}
	if m.GetNamespace() == "" {
		return fail.New(errdefs.ErrInvalidArgument, "pod %s: a namespace is required", m.GetName())
	}
	if dir := cfg.LogDirectory; dir != "" && !filepath.IsAbs(dir) {
		return fail.New(errdefs.ErrInvalidArgument, "pod %s/%s: log directory %q is not an absolute path", m.Namespace,
			m.Name, dir)
	}
	if len(cfg.Hostname) > 64 {
		return fail.New(errdefs.ErrInvalidArgument, "pod %s/%s: hostname %q is longer than the kernel's 64 bytes",
			m.Namespace, m.Name, cfg.Hostname)
	}
	if err := checkFiles(cfg); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "pod %s/%s: %w", m.Namespace, m.Name, err)
	}
	if err := bundle.CheckUserNamespace(cfg); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "pod %s/%s: %w", m.Namespace, m.Name, err)
	}
	if parent := cfg.GetLinux().GetCgroupParent(); strings.Contains(parent, "/") && parent != filepath.Clean("/"+parent) {
		return fail.New(errdefs.ErrInvalidArgument, "pod %s/%s: cgroup parent %q is not a plain absolute path", m.Namespace,
			m.Name, parent)
	}
	if sc := cfg.GetLinux().GetSecurityContext(); sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil {
		return fail.New(errdefs.ErrInvalidArgument, "pod %s/%s: run_as_group needs run_as_user", m.Namespace, m.Name)
	}
	for _, p := range cfg.PortMappings {
		if p.HostPort < 0 || p.HostPort > 65535 || p.ContainerPort < 0 || p.ContainerPort > 65535 {
			return fail.New(errdefs.ErrInvalidArgument, "pod %s/%s: port mapping %d to %d: ports are from 0 to 65535",
				m.Namespace, m.Name, p.HostPort, p.ContainerPort)
		}
	}
	hostNet := sandbox.Namespaces(cfg).GetNetwork() == runtimeapi.NamespaceMode_NODE
	if node, _ := os.Hostname(); hostNet && cfg.Hostname != "" && cfg.Hostname != node {
		return fail.New(errdefs.ErrInvalidArgument,
			"pod %s/%s: hostname %q: the pod has the node's network, and with it the node's name %q; "+
				"leave hostname empty", m.Namespace, m.Name, cfg.Hostname, node)
	}
	if err := spec.CheckSysctls(cfg.GetLinux().GetSysctls(), !hostNet, !sandbox.HostIPC(cfg), !hostNet); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "pod %s/%s: %w", m.Namespace, m.Name, err)
	}
	return nil
}

// checkFiles refuses what would be more than one word in the pod's /etc/hostname and /etc/resolv.conf: what follows a
// line break would be a line of its own there. What a name consists of otherwise is its sender's matter.
func checkFiles(cfg *runtimeapi.PodSandboxConfig) error {
	dns := cfg.GetDnsConfig()
	for _, f := range []struct {
		field string
		words []string
	}{
		{"hostname", []string{cfg.GetHostname()}}, {"dns_config.servers", dns.GetServers()},
		{"dns_config.searches", dns.GetSearches()}, {"dns_config.options", dns.GetOptions()},
	} {
		for _, word := range f.words {
			if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
				return fmt.Errorf("%s: %q has a blank or a control character in it", f.field, word)
			}
		}
	}
	return nil
}
