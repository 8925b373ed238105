package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"berth/bench/internal/floor"
	"berth/bench/internal/kubelet"
	"berth/bench/internal/peer"
	"berth/test/isolate"
)

// sideBySide measures isolated; outside it removes files and cgroups, whatever happened inside.
func sideBySide(o options) error {
	return isolate.Run(func(dir string) error {
		o.dir = dir
		ctx, cancel := interruptible()
		defer cancel()
		return o.measurePeers(ctx)
	}, cleanUp)
}

func cleanUp(dir string) error {
	return errors.Join(kubelet.RemoveCgroup(cgroupOf(dir)), kubelet.RemoveCgroup(peer.BerthGroup(dir, "berth")),
		kubelet.RemoveCgroup(peer.BerthGroup(dir, peer.Before)))
}

func cgroupOf(dir string) string { return "cribench-" + filepath.Base(dir) }

func (o options) measurePeers(ctx context.Context) (err error) {
	s, err := o.setup()
	if err != nil {
		return err
	}
	o.suite.Restart = map[string]func() (time.Duration, error){}
	for _, name := range o.chosen() {
		p, err := s.Start(ctx, name)
		if p != nil {
			defer func() { err = errors.Join(err, p.Stop()) }()
		}
		if err != nil {
			return err
		}
		o.suite.Runtimes = append(o.suite.Runtimes, &p.Runtime)
		o.suite.Restart[name] = p.Restart
	}
	if o.suite.Floor, err = o.floor(s); err != nil {
		return err
	}
	o.suite.Command = []string{"/bin/true"}
	return o.measure(ctx)
}

func (o options) chosen() []string {
	switch {
	case o.only != "":
		return strings.Split(o.only, ",")
	case o.berth == "":
		return []string{"containerd"}
	case o.before != "":
		return []string{"berth", peer.Before}
	default:
		return peer.Names
	}
}

// setup makes every path absolute, for daemons that run elsewhere, and serves the images.
func (o options) setup() (peer.Setup, error) {
	peers, err := filepath.Abs(o.peers)
	if err != nil {
		return peer.Setup{}, err
	}
	berth, err := filepath.Abs(o.berth)
	if err != nil {
		return peer.Setup{}, err
	}
	before, err := filepath.Abs(o.before)
	if err != nil {
		return peer.Setup{}, err
	}
	images, err := peer.ServeImages(filepath.Join(o.dir, "certs.d"), o.rootfs())
	if err != nil {
		return peer.Setup{}, fmt.Errorf("serve images: %w", err)
	}
	return peer.Setup{
		Programs: filepath.Join(peers, "bin"), Plugins: filepath.Join(peers, "cni"), Berth: berth, Before: before,
		Dir: o.dir, CgroupParent: "/" + cgroupOf(o.dir), Images: images, Idle: []string{"/webapp", "signal"},
	}, nil
}

func (o options) rootfs() string { return filepath.Join(o.dir, "floor", "rootfs") }

func (o options) floor(s peer.Setup) (*floor.Floor, error) {
	dir := filepath.Join(o.dir, "floor")
	if err := peer.WriteNetwork(filepath.Join(dir, "net.d"), "bnf0", "10.242.0.0/16"); err != nil {
		return nil, err
	}
	f := &floor.Floor{
		Runtime: s.Runc(), Plugins: []string{s.Plugins}, Network: filepath.Join(dir, "net.d", "10-bench.conflist"),
		Rootfs: o.rootfs(), Command: s.Idle, Dir: dir, CgroupParent: filepath.Join(s.CgroupParent, "floor"),
	}
	return f, f.Prepare()
}
