// Command cribench measures container runtimes through their CRI sockets.
//
//	cribench [flags] NAME=SOCKET [NAME=SOCKET ...]   runtimes that already run
//	cribench -peers DIR [-berth DIR] [flags]         starts Berth and containerd side by side, and the floor under both
//
// With -peers everything happens isolated, and nothing stays behind. It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"berth/bench/internal/kubelet"
	"berth/bench/internal/report"
	"berth/bench/internal/suite"
)

// options are the command line.
type options struct {
	peers, berth, before, only              string
	sections, json, table                   string
	image, idle, command, cgroupParent, dir string
	suite                                   suite.Suite
	sockets                                 []string
}

const idleScript = `trap "exit 0" TERM; echo ready; while :; do sleep 3600 & wait $!; done`

func parse() options {
	var o options
	flag.StringVar(&o.peers, "peers", "", "folder with bin/ (containerd, its shim, runc) and cni/ (plugins): start the "+
		"runtimes")
	flag.StringVar(&o.berth, "berth", "", "folder of berth and berth-monitor, for -peers; without it containerd "+
		"runs alone")
	flag.StringVar(&o.before, "before", "", "the same of another build, to be measured in place of containerd")
	flag.StringVar(&o.only, "only", "",
		"with -peers: start only these runtimes, separated by commas: berth, containerd, crio, before")
	flag.StringVar(&o.sections, "sections", "", "measure only these, separated by commas: start, host, exec, atonce, "+
		"density;\nrestart, with -peers, only when it is named")
	flag.StringVar(&o.json, "json", "", "also write the report with every sample to this file")
	flag.StringVar(&o.table, "table", "", "also write the table to this file")
	flag.StringVar(&o.image, "image", "", "for running runtimes: the image of the pods")
	flag.StringVar(&o.idle, "idle-command", idleScript,
		"for running runtimes: a shell command that prints \"ready\" and then waits for SIGTERM, in that image")
	flag.StringVar(&o.command, "exec-command", "true", "for running runtimes: a command that ends at once, in that image")
	flag.StringVar(&o.cgroupParent, "cgroup-parent", "", "for running runtimes: make the pods' cgroup parents under "+
		"this one")
	flag.IntVar(&o.suite.Rounds, "rounds", 20, "pod starts of each kind")
	flag.IntVar(&o.suite.AtOnce, "at-once", 8, "pods started at once")
	flag.IntVar(&o.suite.Pods, "pods", 50, "idle pods")
	flag.IntVar(&o.suite.Crowd, "crowd", 200, "pods of the node whose daemon is restarted")
	flag.IntVar(&o.suite.Execs, "execs", 50, "execs")
	flag.IntVar(&o.suite.Reads, "reads", 200, "reads of each kind")
	flag.DurationVar(&o.suite.Idle, "watch", time.Minute,
		"how long idle pods are watched; Go's runtime wakes each process once a minute")
	flag.Parse()
	o.sockets = flag.Args()
	return o
}

func main() {
	// The kernel ties the death of a child to that of the thread that started it.
	runtime.LockOSThread()
	if err := run(parse()); err != nil {
		fmt.Fprintln(os.Stderr, "cribench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if (o.peers == "") == (len(o.sockets) == 0) {
		return errors.New("give either -peers or sockets; see -help")
	}
	if o.peers != "" {
		return sideBySide(o)
	}
	dir, err := os.MkdirTemp("", "cribench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	o.dir = dir
	return measureRunning(o)
}

// measureRunning measures runtimes that somebody else runs.
func measureRunning(o options) error {
	ctx, cancel := interruptible()
	defer cancel()
	if o.image == "" {
		return errors.New("-image is needed with sockets")
	}
	for _, arg := range o.sockets {
		name, socket, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not NAME=SOCKET", arg)
		}
		r := &kubelet.Runtime{
			Name: name, Socket: strings.TrimPrefix(socket, "unix://"), Image: o.image, Idle: []string{"sh", "-c", o.idle},
			Dir: o.dir, CgroupParent: o.cgroupParent,
		}
		if err := connect(ctx, r); err != nil {
			return err
		}
		o.suite.Runtimes = append(o.suite.Runtimes, r)
	}
	o.suite.Command = strings.Fields(o.command)
	return o.measure(ctx)
}

func connect(ctx context.Context, r *kubelet.Runtime) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.Connect(ctx); err != nil {
		return err
	}
	return r.Pull(ctx)
}

// interruptible ends at the first ^C, so that what runs is taken down in order.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// measure runs the suite and writes what it found.
func (o options) measure(ctx context.Context) error {
	r, err := report.New()
	if err != nil {
		return err
	}
	s := o.suite
	s.Report, s.Progress = r, os.Stderr
	for _, rt := range s.Runtimes {
		r.Runtimes = append(r.Runtimes, report.Runtime{Name: rt.Name, Version: rt.Version})
	}
	if s.Floor != nil {
		r.Runtimes = append(r.Runtimes, report.Runtime{Name: suite.FloorName, Version: "CNI plugins and OCI runtime alone"})
	}
	for name, value := range map[string]int{"rounds": s.Rounds, "at once": s.AtOnce, "pods": s.Pods, "crowd": s.Crowd,
		"execs": s.Execs, "reads": s.Reads} {
		r.Settings[name] = fmt.Sprint(value)
	}
	r.Settings["watch"] = s.Idle.String()
	var sections []string
	if o.sections != "" {
		sections = strings.Split(o.sections, ",")
	}
	if err := s.Run(ctx, sections); err != nil {
		return err
	}
	return r.WriteAll(o.table, o.json)
}
