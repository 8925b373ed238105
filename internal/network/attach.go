package network

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/record"
)

// NotReadyError says that there is no usable network, and why.
type NotReadyError struct{ Status Status }

func (e *NotReadyError) Error() string { return "the node's network is not ready: " + e.Status.Message }

// Unwrap returns the kind: the network may come.
func (e *NotReadyError) Unwrap() error { return errdefs.ErrUnavailable }

// runName is under which name the programs of a pod run: one name for all verbs, so that a plugin that cannot be killed
// keeps the next from running beside it.
func runName(pod string) string { return "cni-" + pod }

// Attach connects a pod to the network. What an earlier Attach of that pod left is undone first. After an error, or a
// crash, Detach undoes whatever it did.
func (n *Network) Attach(ctx context.Context, p Pod) (Result, error) {
	result, err := n.attach(ctx, p)
	if err != nil {
		return Result{}, fmt.Errorf("attach network of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return result, nil
}

func (n *Network) attach(ctx context.Context, p Pod) (Result, error) {
	conf := n.CNI.current.Load().conf
	if conf == nil {
		return Result{}, &NotReadyError{n.CNI.Status()}
	}
	caps, err := capabilities(p)
	if err != nil {
		return Result{}, err
	}
	warnUnmet(n.log, conf, p, caps)
	if err := n.detach(ctx, p); err != nil {
		return Result{}, fmt.Errorf("undo an earlier attachment: %w", err)
	}
	boot, _ := bootTime()
	a := &attachment{Pod: p.ID, NetNS: p.NetNS, Boot: boot, Networks: []attached{
		{Config: *conf, IfName: ifName, Args: kubernetesArgs(p), Capabilities: caps},
	}}
	if err := n.attachments.save(a, "network.attach.intent"); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, n.CNI.inForce().AddTimeout)
	defer cancel()
	var result Result
	for i := range a.Networks {
		r, err := n.add(ctx, a, &a.Networks[i])
		if err != nil {
			return Result{}, err
		}
		if i == 0 {
			result = r
		}
	}
	return result, n.attachments.save(a, "network.attach.result")
}

// call is a run of a network's plugins for a pod.
func (n *Network) call(verb string, a *attachment, on *attached) *call {
	return &call{
		settings: n.CNI.inForce, run: n.run, log: n.log, name: runName(a.Pod), verb: verb, conf: &on.Config,
		pod: a.Pod, netns: a.NetNS, on: on,
	}
}

// add runs ADD of each plugin in order, the result of one being the input of the next. Each result is recorded before
// the next plugin runs: a DEL of what was cut off gets it, and without it a plugin such as firewall finds nothing to
// undo.
func (n *Network) add(ctx context.Context, a *attachment, on *attached) (Result, error) {
	c := n.call("ADD", a, on)
	var last types.Result
	for i, p := range on.Config.Plugins {
		if i > 0 {
			if err := n.attachments.save(a, "network.attach.partial"); err != nil {
				return Result{}, err
			}
		}
		if err := fault.At("network.attach.add.before"); err != nil {
			return Result{}, err
		}
		var err error
		if last, err = c.one(ctx, p, on.Partial); err != nil {
			return Result{}, err
		}
		if last, err = last.GetAsVersion(on.Config.Version); err != nil {
			return Result{}, fmt.Errorf("CNI plugin %s: its result: %w", p.Type, err)
		}
		if on.Partial, err = json.Marshal(last); err != nil {
			return Result{}, err
		}
		if err := fault.At("network.attach.add.after"); err != nil {
			return Result{}, err
		}
	}
	r, err := types100.GetResult(last)
	if err != nil {
		return Result{}, fmt.Errorf("network %q: read its result: %w", on.Config.Name, err)
	}
	ips := addresses(r, on.IfName)
	if len(ips) == 0 {
		return Result{}, fmt.Errorf("network %q gave the pod no address: does a plugin in %s have an ipam section?",
			on.Config.Name, on.Config.File)
	}
	on.Result, on.Partial = on.Partial, nil
	return Result{IPs: ips, Raw: on.Result}, nil
}

// addresses are those of the pod's interface, in the order of the result, or of all that is not the host's if the
// result does not say which are that interface's.
func addresses(r *types100.Result, ifname string) []netip.Addr {
	var own, any []netip.Addr
	for _, ip := range r.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		known := ip.Interface != nil && *ip.Interface >= 0 && *ip.Interface < len(r.Interfaces)
		// One of the node has no sandbox. A plugin may leave that out of the pod's own, too: the CNI spec does not require
		// it.
		if known && r.Interfaces[*ip.Interface].Sandbox == "" && r.Interfaces[*ip.Interface].Name != ifname {
			continue
		}
		if !slices.Contains(any, addr) {
			any = append(any, addr)
			if known && r.Interfaces[*ip.Interface].Name == ifname {
				own = append(own, addr)
			}
		}
	}
	if len(own) > 0 {
		return own
	}
	return any
}

// Detach undoes Attach, by what Attach wrote down: also when the configuration has changed since, when the network
// namespace is gone, and when the ADD never finished. It may be repeated, and is nil when nothing is there. A plugin
// that fails is a *DetachError. An attachment whose ADD never succeeded, and whose plugins go on to refuse DEL, is
// given up in the end (see refusedTries), and so is one of another boot whose plugins fail in any way.
func (n *Network) Detach(ctx context.Context, p Pod) error {
	if err := n.detach(ctx, p); err != nil {
		return fmt.Errorf("detach network of pod %s: %w", p.ID, err)
	}
	return nil
}

func (n *Network) detach(ctx context.Context, p Pod) error {
	a, err := n.attachments.read(p.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var damaged *record.CorruptError
	if errors.As(err, &damaged) {
		a, err = n.guess(p, damaged)
	}
	if err != nil {
		return err
	}
	cutOff := a.Undoing || damaged != nil
	boot, _ := bootTime()
	if !a.Undoing || a.Boot == "" {
		a.Undoing, a.Boot = true, cmp.Or(a.Boot, boot)
		// A full disk keeps no pod from being detached.
		if err := n.attachments.save(a, "network.detach.intent"); err != nil {
			n.log.Warn("the intent to detach a pod could not be recorded", "pod", p.ID, "error", err)
			cutOff = true
		}
	}
	for i := len(a.Networks) - 1; i >= 0; i-- {
		u := &undo{n: n, a: a, on: &a.Networks[i], cutOff: cutOff, booted: boot != "" && a.Boot != boot}
		u.look()
		err := u.run(ctx)
		if err == nil && u.mayLeaveRules() {
			err = clearRules(ctx, n.run, n.log, a.Pod, u.on.Config.Name)
		}
		if err != nil {
			path, _ := n.attachments.path(p.ID)
			return &DetachError{Pod: p.ID, Record: path, Err: err, GivenUp: u.givenUp, Booted: u.outlived()}
		}
	}
	if err := fault.At("network.detach.forget.before"); err != nil {
		return err
	}
	if err := n.attachments.remove(p.ID); err != nil {
		return err
	}
	return fault.At("network.detach.forget.after")
}

// guess stands in for a record that a power cut tore, that is another pod's, or no file: the configuration in force and
// what the caller knows of the pod are the best that is left, and every CNI plugin must cope with a DEL without a
// result.
func (n *Network) guess(p Pod, damaged error) (*attachment, error) {
	conf := n.CNI.current.Load().conf
	if conf == nil {
		return nil, fmt.Errorf("%w; it can be undone by the network in force, but there is none now", damaged)
	}
	caps, err := capabilities(p)
	if err != nil {
		return nil, err
	}
	n.log.Warn("the record of a network attachment is damaged; detaching with the configuration in force",
		"pod", p.ID, "error", damaged)
	return &attachment{Pod: p.ID, NetNS: p.NetNS, Guessed: true, Networks: []attached{
		{Config: *conf, IfName: ifName, Args: kubernetesArgs(p), Capabilities: caps},
	}}, nil
}

// IsNamespace reports whether a namespace is mounted at path. A pin's file alone may survive a boot.
func IsNamespace(path string) bool {
	var st unix.Statfs_t
	return path != "" && unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Check asks the plugins whether a pod's attachment is as they made it. It is nil where they cannot be asked.
func (n *Network) Check(ctx context.Context, p Pod) error {
	a, err := n.attachments.read(p.ID)
	if err != nil {
		return fmt.Errorf("check network of pod %s: %w", p.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for i := range a.Networks {
		on := &a.Networks[i]
		if on.Result == nil {
			return fmt.Errorf("check network of pod %s: its attachment to %q never finished", p.ID, on.Config.Name)
		}
		if on.Config.DisableCheck || !on.Config.atLeast("0.4.0") {
			continue
		}
		c := n.call("CHECK", a, on)
		for _, plugin := range on.Config.Plugins {
			if _, err := c.one(ctx, plugin, on.Result); err != nil {
				return fmt.Errorf("check network of pod %s: %w", p.ID, err)
			}
		}
	}
	return nil
}
