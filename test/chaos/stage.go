package chaos

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/isolate"
	"berth/test/timeouts"
	"berth/test/volume"
)

// stage is where a run takes place: the runtime that is struck, a registry, the folders of both.
type stage struct {
	Options
	report   *Report
	root     string // where the runtime keeps what outlives a boot
	logs     string // of the pods
	net      string // the network configuration; the leases are below it
	certs    string
	socket   string
	parent   string // what the cgroups of the pods have in their paths, as those of a kubelet have kubepods
	own      string // what names cgroups that the runtime has for itself
	daemon   *service
	registry *service
	client   *client
	images   []string
	history  *history
	volumes  []*volume.Volume
	network  *volume.Slow // that of the logs; nil without disks of the run's own
}

// registryAddr is where the registry listens, in the network namespace of the run.
const registryAddr = "127.0.0.1:5000"

// instance is how a Berth with this root names what it makes on the machine.
func instance(root string) string {
	sum := sha256.Sum256([]byte(root))
	return "berth-" + hex.EncodeToString(sum[:])[:6]
}

func newStage(o Options) *stage {
	root := filepath.Join(o.Dir, "root")
	s := &stage{
		Options: o, root: root, logs: filepath.Join(o.Dir, "pods"), net: filepath.Join(o.Dir, "net.d"),
		certs: filepath.Join(o.Dir, "certs.d"), socket: filepath.Join("/run", o.Peer, "cri.sock"),
		parent: "/bt-chaos-" + filepath.Base(o.Dir), own: instance(root), history: newHistory(),
	}
	if o.Machine {
		s.parent = "btchaos"
	}
	return s
}

// cgroupOf is the cgroup parent of a pod, as a kubelet asks for it: a path, or the name of a slice.
func cgroupOf(s *stage, pod string) string {
	if s.Machine {
		return s.parent + "-pod_" + strings.ReplaceAll(pod, "-", "_") + ".slice"
	}
	return filepath.Join(s.parent, "pod"+pod)
}

// openStage starts the registry and the runtime. With disks, the runtime's root and the logs are on small disks of
// their own.
func openStage(o Options, r *Report, disks bool) (*stage, error) {
	s := newStage(o)
	s.report = r
	for _, dir := range []string{s.root, s.logs, s.net, filepath.Join(s.certs, registryAddr), filepath.Dir(s.socket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	// What programs leave in /tmp is seen, and goes with the run.
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"); err != nil {
		return nil, fmt.Errorf("mount an empty /tmp: %w", err)
	}
	if o.Runtime == "crun" {
		if err := isolate.HideUnified(); err != nil {
			return nil, err
		}
	}
	if disks {
		if err := s.mountDisks(); err != nil {
			return nil, err
		}
	}
	if err := s.startRegistry(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, errors.Join(s.startDaemon())
}

func (s *stage) startDaemon() error {
	command, err := s.peerCommand()
	if err != nil {
		return err
	}
	s.daemon, err = startService(command, s.daemonLog(), func(how string) {
		s.report.lose(Crashed, "%s; its log says why", how)
	})
	if err != nil {
		return err
	}
	if s.client, err = dial(s.socket, s.limit()); err != nil {
		return err
	}
	return s.client.ready(timeouts.For(time.Minute))
}

func (s *stage) daemonLog() string { return filepath.Join(s.Dir, "daemon.log") }

// limit is how long a request may be made again and again. Nothing is stopped or hangs for longer than Longest at a
// time.
func (s *stage) limit() time.Duration { return timeouts.For(2*time.Minute) + 2*s.Longest }

// keepLogs copies the daemon's log to the folder that BERTH_KEEP_LOGS names, where something was lost.
func (s *stage) keepLogs() {
	keep := os.Getenv("BERTH_KEEP_LOGS")
	if keep == "" || !s.report.Failed() {
		return
	}
	to := filepath.Join(keep, fmt.Sprintf("%s-%s-%s-%d.log", s.Peer, s.Mix, s.Runtime, s.Seed))
	err := os.MkdirAll(keep, 0o755)
	if err == nil {
		err = exec.Command("cp", s.daemonLog(), to).Run()
	}
	if err != nil {
		s.report.say("keep the log of the daemon: %v", err)
	}
}

func (s *stage) close() error {
	var errs []error
	for _, p := range []*service{s.daemon, s.registry} {
		if p != nil {
			errs = append(errs, p.stop(timeouts.For(30*time.Second)))
		}
	}
	s.removePlain()
	if s.network != nil {
		errs = append(errs, s.network.Close())
	}
	if s.client != nil {
		errs = append(errs, s.client.close())
	}
	return errors.Join(errs...)
}
