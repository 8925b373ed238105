package conformance

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// The sites, as known.txt names them.
const (
	Host = "host" // a node of namespaces on this machine, with cgroup v1 and without systemd
	VM   = "vm"   // a virtual machine with systemd and cgroup v2, in which the package is installed
)

// site is where the daemon of a run, the kubelet and the pods are.
type site interface {
	// open starts the daemon. In the place of the hosts that the specs name it reaches the registry.
	open(*fixture.Registry) error
	// about says what the suite has to know. It is called once the daemon runs.
	about() about
	pull(ctx context.Context, image string) error
	// start starts a program of the suite, which sees what the daemon sees.
	start(*exec.Cmd) error
	// close ends all pods and the daemon. It may be called when open has failed.
	close() error
}

// about is what differs between sites.
type about struct {
	name     string   // Host or VM
	socket   string   // of the daemon
	driver   string   // the kubelet's, of cgroups
	score    int      // the kubelet's, by which the kernel spares it
	smoke    string   // the list of the smoke set
	at       int      // how many specs of the smoke set run at once
	standIns []string // programs in whose place StandIn is, because there are none
	flags    []string // more of the suite's
}

// namespaces is the site on this machine: the daemon is a node of package node, with what furnish makes around it.
type namespaces struct {
	dir, runtime string
	config       string       // more of the daemon's, before its first table
	setup        func() error // more that is made around the node; may be nil
	node         *node.Node
}

func (n *namespaces) open(registry *fixture.Registry) error {
	path, err := exec.LookPath(n.runtime)
	if err != nil {
		return err
	}
	setup := []func() error{func() error { return furnish(n.dir, n.runtime) }}
	if n.setup != nil {
		setup = append(setup, n.setup)
	}
	n.node, err = node.Open(node.Options{
		Runtime: n.runtime, Reach: []string{registry.Addr}, Setup: setup, Config: n.config, Tables: handlers(path),
	})
	if err != nil {
		return err
	}
	for _, host := range hosts {
		err = errors.Join(err, registry.StandIn(host, n.node.Certs))
	}
	// Where there is no systemd, the suite names this cgroup to the kubelet as the runtime's.
	return errors.Join(err, n.node.Space.Do(func() error { return enterGroup("docker-daemon", n.node.Pid()) }))
}

// handlers configures the handler that specs of runtime classes name.
func handlers(path string) string { return fmt.Sprintf("[runtimes.test-handler]\npath = %q\n", path) }

func (n *namespaces) about() about {
	return about{
		name: Host, socket: n.node.Socket, driver: "cgroupfs", smoke: smokeText, at: 10,
		score:    0, // another takes CAP_SYS_RESOURCE
		standIns: []string{"sudo", "systemctl"},
	}
}

func (n *namespaces) pull(ctx context.Context, image string) error {
	_, err := n.node.Images.PullImage(ctx, &runtimeapi.ImageSpec{Image: image}, nil, nil)
	return err
}

func (n *namespaces) start(cmd *exec.Cmd) error { return n.node.Space.Start(cmd) }

func (n *namespaces) close() error {
	if n.node == nil {
		return nil
	}
	return errors.Join(n.node.RemoveAll(), n.node.Space.Do(leaveKubelet), n.node.Close())
}

// pulled is the full name of an image of a run.
func pulled(image string) string {
	if strings.HasPrefix(image, privateRepo) {
		return filepath.Join(hosts[1], image)
	}
	return filepath.Join(hosts[0], image)
}
