package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types/create"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/fault"
)

// undo is the DEL of one network of an attachment.
type undo struct {
	n      *Network
	a      *attachment
	on     *attached
	cutOff bool // a DEL before was cut off, or may have been
	booted bool // the machine has booted since the ADD

	// netns is the pod's network namespace, "" where it is gone: CNI then lets plugins undo what is outside of it.
	netns string
	// intact says that the pod's interface is there, with the addresses that its ADD gave it.
	intact bool

	givenUp time.Duration // after how long of what has failed last the attachment is given up, 0 for never
}

// look finds out what is there of the pod's network, and gives its interface back the addresses that it has lost.
func (u *undo) look() {
	if !IsNamespace(u.a.NetNS) {
		return
	}
	u.netns = u.a.NetNS
	err := restore(u.netns, u.on)
	u.intact = err == nil
	if err != nil && !errors.Is(err, unix.ENODEV) {
		u.n.log.Warn("a pod's interface did not get back the addresses that it had lost; plugins may leave something "+
			"behind", "pod", u.a.Pod, "error", err)
	}
}

// run runs DEL of the network's plugins. What no further DEL may mend is tried for a while (see givesUpAfter), and the
// attachment is then given up. Where its ADD is not known to have succeeded, and a plugin refuses its configuration,
// which it would for ever, DEL is also tried by the configuration in force.
func (u *undo) run(ctx context.Context) error {
	err := u.del(ctx, u.on, nil)
	u.givenUp = u.givesUpAfter(err)
	if mended := u.mended(); mended != nil && refused(err) {
		again := u.del(ctx, mended, nil)
		if again == nil {
			u.n.log.Info("a pod was detached with the configuration in force: plugins refuse that of its attachment, "+
				"which never succeeded", "pod", u.a.Pod, "network", u.on.Config.Name, "error", err)
			return nil
		}
		u.givenUp = u.givesUpAfter(again)
		err = fmt.Errorf("%w; and with the configuration in force: %w", err, again)
	}
	if u.givenUp == 0 || ctx.Err() != nil { // where ctx has ended, the plugin was not left to itself
		return err
	}
	u.a.Refused = u.a.Refused.add()
	if !u.a.Refused.enough(u.givenUp) {
		if e := u.n.attachments.write(u.a); e != nil {
			u.n.log.Warn("a refusal to detach a pod could not be recorded", "pod", u.a.Pod, "error", e)
		}
		return err
	}
	return u.giveUp(ctx)
}

// outlived reports whether nothing of the pod's network is there any more but what plugins keep on a disk: a boot has
// taken the rest, and no pod of before uses an address.
func (u *undo) outlived() bool { return u.booted && u.netns == "" }

// givesUpAfter returns for how long DEL is tried that fails with err, before the attachment is given up; 0 is without
// end. Where a boot has taken what an ADD made, each failure of a plugin ends one day: soon, where the plugin is
// missing or finds nothing there, and late, where it may wait for an agent or an API that come back. Otherwise only a
// refusal does, where no ADD has succeeded.
func (u *undo) givesUpAfter(err error) time.Duration {
	switch {
	case u.outlived() && (fail.As[*MissingPluginError](err) || notThere(err)):
		return refusedFor
	case u.outlived() && fail.As[*PluginError](err):
		return failedFor
	case !u.outlived() && refused(err) && u.on.Result == nil && !u.a.Guessed: // a guess may have succeeded
		return refusedFor
	}
	return 0
}

// mayLeaveRules reports whether plugins of the CNI project may have left rules of the pod although their DEL succeeds:
// where one was cut off, and where the interface is not as it was, since bridge and ptp find their rules by its
// addresses. portmap passes over what goes wrong when it looks for chains of its earlier releases, and may leave one. A
// boot leaves no rules.
func (u *undo) mayLeaveRules() bool {
	_, ports := u.on.Capabilities["portMappings"]
	return u.cutOff || u.on.Result == nil || ports || !u.intact && !u.booted
}

// mended is the attachment by the configuration in force, nil where an ADD has succeeded by its own, and where that in
// force is none, the same, or another network's: what one of another name does not find may be there all the same.
func (u *undo) mended() *attached {
	now := u.n.CNI.current.Load().conf
	if u.on.Result != nil || now == nil || now.Name != u.on.Config.Name || sameConfig(now, &u.on.Config) {
		return nil
	}
	again := *u.on
	again.Config = *now
	again.Partial = inVersion(again.Partial, u.on.Config.Version, now.Version)
	return &again
}

// inVersion is a result in another version of CNI, nil where there is none.
func inVersion(result json.RawMessage, from, to string) json.RawMessage {
	if result == nil || from == to {
		return result
	}
	r, err := create.Create(from, result)
	if err == nil {
		r, err = r.GetAsVersion(to)
	}
	if err == nil {
		result, err = json.Marshal(r)
	}
	if err != nil {
		return nil
	}
	return result
}

// sameConfig tells configurations apart by what plugins are told.
func sameConfig(a, b *netconf) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// giveUp runs DEL of every plugin once more, and passes over those that have failed for long enough.
func (u *undo) giveUp(ctx context.Context) error {
	var passed []error
	err := u.del(ctx, u.on, func(err error) bool {
		u.givenUp = u.givesUpAfter(err)
		if u.givenUp == 0 || !u.a.Refused.enough(u.givenUp) || ctx.Err() != nil {
			return false
		}
		passed = append(passed, err)
		return true
	})
	if err != nil || len(passed) == 0 {
		return err
	}
	why := "its ADD never succeeded, and its plugins refuse DEL; what an ADD may have left"
	if u.outlived() {
		why = "the machine has booted since, and plugins that made it are missing, or fail; what they may have left"
	}
	u.n.log.Warn("the attachment of a pod is given up: "+why+" is to be removed by hand, such as an address that the "+
		"IPAM plugin keeps for the pod",
		"pod", u.a.Pod, "network", u.on.Config.Name, "configuration", u.on.Config.File,
		"tries", u.a.Refused.Tries, "since", u.a.Refused.Since, "error", errors.Join(passed...))
	return nil
}

// del runs DEL of each plugin, last first. It stops at one that fails, unless passOver, which may be nil, takes its
// error: what comes before it in the list, such as an address, must not be given away while what was built on it
// stands. It has the time for a DEL to itself, and again after each that is passed over: one that was refused slowly,
// or hung, must not cost the next its time.
func (u *undo) del(ctx context.Context, on *attached, passOver func(error) bool) error {
	timeout := u.n.CNI.inForce().DelTimeout
	until := time.Now().Add(timeout)
	c := u.n.call("DEL", u.a, on)
	c.netns = u.netns
	var prev json.RawMessage
	if on.Config.atLeast("0.4.0") {
		prev = on.known()
	}
	for _, p := range slices.Backward(on.Config.Plugins) {
		if err := fault.At("network.detach.del.before"); err != nil {
			return err
		}
		ctx, cancel := context.WithDeadline(ctx, until)
		_, err := c.one(ctx, p, prev)
		cancel()
		if err != nil {
			if passOver == nil || !passOver(err) {
				return err
			}
			until = time.Now().Add(timeout)
		}
		if err := fault.At("network.detach.del.after"); err != nil {
			return err
		}
	}
	if c.netns != "" {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	return reclaim(ctx, &on.Config)
}
