package pod

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"berth/internal/bundle"
	"berth/internal/op"
	"berth/internal/runtime"
	"berth/internal/sandbox"
)

// stepFiles is the step that a stop goes back to. A stop undoes the steps after it. It and those before it stay until
// the pod is removed: put a new step on the right side.
const stepFiles = "files"

// podPlan makes or removes one pod, by its record alone. Its steps set ips and init.
type podPlan struct {
	p    *pod
	r    *sandbox.Record
	on   bundle.Pod // what of it is on the host
	ips  []netip.Addr
	init runtime.Process
}

func (p *pod) plan() *podPlan {
	r := p.record()
	return &podPlan{p: p, r: r, on: p.bundle.Pod(r)}
}

// steps are the plan of a pod. Forward it makes the pod, backward it stops and removes it.
func (m *podPlan) steps() op.Plan {
	cfg, id := m.p.cfg, string(m.p.id)
	return op.Plan{Name: "pod", Seen: cfg.StepSeen, Steps: []op.Step{
		{Name: "record", Do: m.announce,
			Undo: func(context.Context) error { return removeDir(cfg.Pod(m.p.id)) }},
		step(stepFiles, bundle.Dirs(m.on)),
		step("etc", bundle.Etc(m.on)),
		step("cgroup", bundle.Cgroup(m.on)),
		step("shm", bundle.Shm(m.on)),
		{Name: "monitor", Beside: true, Deadline: 30 * time.Second,
			Do:   func(ctx context.Context) error { return cfg.Runtime.Launch(ctx, id) },
			Undo: func(ctx context.Context) error { return cfg.Runtime.Shutdown(ctx, id) }},
		step("namespaces", bundle.Pins(m.on)),
		{Name: "network", Deadline: cfg.Network.Deadline(), Do: m.attach, Undo: m.detach},
		{Name: "init", Joins: true, Do: m.startInit, Undo: m.endInit},
		{Name: "plugins", Do: m.introduce, Undo: m.dismiss},
	}}
}

// step makes and removes one part of what is on the host.
func step(name string, p bundle.Part) op.Step {
	return op.Step{Name: name, Do: p.Make, Undo: p.Remove}
}

// announce makes the pod's directory and its first record: the intent before any effect.
func (m *podPlan) announce(ctx context.Context) error {
	dir := m.p.cfg.Pod(m.p.id)
	for _, d := range []string{dir, filepath.Join(dir, "exits"), filepath.Join(dir, "c")} {
		if err := os.Mkdir(d, 0o700); err != nil && !os.IsExist(err) {
			return err
		}
	}
	if err := m.p.identity.Create(identityOf(m.r)); err != nil {
		return err
	}
	return m.p.update(ctx, "pod.creating", func(*sandbox.Record) error { return nil })
}

func (m *podPlan) attach(ctx context.Context) error {
	if m.r.HostNetwork() {
		return nil
	}
	res, err := m.p.cfg.Network.Attach(ctx, m.on.Network())
	if err != nil {
		return err
	}
	m.ips = res.IPs
	return m.on.SetInterfaceSysctls()
}

func (m *podPlan) detach(ctx context.Context) error {
	if m.r.HostNetwork() {
		return nil
	}
	return m.p.cfg.Network.Detach(ctx, m.on.Network())
}

// startInit starts the pod's own init where it has one.
func (m *podPlan) startInit(ctx context.Context) error {
	if !m.r.HasInit() {
		return nil
	}
	create, err := m.on.Init(ctx)
	if err != nil {
		return err
	}
	driver, id := m.p.runtime, string(m.p.id)
	if m.init, err = driver.Create(ctx, id, create); err != nil {
		return err
	}
	return driver.Start(ctx, id, id, runtime.Log{}, create.Deadline)
}

func (m *podPlan) endInit(ctx context.Context) error {
	if !m.r.HasInit() {
		return nil
	}
	h, err := m.p.bundle.Handlers.Of(m.r)
	if err != nil {
		return err
	}
	driver, id := m.p.runtime, string(m.p.id)
	if err := driver.KillAll(ctx, id, id); err != nil {
		return err
	}
	return driver.Delete(ctx, id, id, h)
}
