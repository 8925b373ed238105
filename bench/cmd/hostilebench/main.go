// Command hostilebench measures what hostile containers cost the other pods of a node, with Berth and with containerd.
//
//	hostilebench -peers DIR -berth DIR [flags]
//
// Everything happens isolated, on disks that are files, and nothing stays behind. It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"berth/bench/internal/hostile"
	"berth/bench/internal/kubelet"
	"berth/bench/internal/peer"
	"berth/bench/internal/report"
	"berth/test/isolate"
)

// options are the command line.
type options struct {
	peers, berth, only, json, table, ways string
	rounds, neighbours, pods, cycles      int
	settle                                time.Duration
}

func parse() options {
	var o options
	flag.StringVar(&o.peers, "peers", "", "folder with bin/ (containerd, its shim and runc) and cni/ (plugins)")
	flag.StringVar(&o.berth, "berth", "bin", "folder of berth and the programs beside it")
	flag.StringVar(&o.only, "only", "", "start only this runtime")
	flag.StringVar(&o.json, "json", "", "also write the report with every sample to this file")
	flag.StringVar(&o.table, "table", "", "also write the table to this file")
	flag.StringVar(&o.ways, "ways", "", "only these ways to be hostile, separated by commas: "+
		strings.Join(hostile.Ways, ", "))
	flag.IntVar(&o.rounds, "rounds", 3, "how often each runtime has each kind of neighbours")
	flag.IntVar(&o.neighbours, "neighbours", 20, "containers beside the good pods")
	flag.IntVar(&o.pods, "pods", 20, "good pods")
	flag.IntVar(&o.cycles, "cycles", 2, "how often the good pods live in each round")
	flag.DurationVar(&o.settle, "settle", 10*time.Second, "how long the neighbours are alone at first")
	flag.Parse()
	return o
}

func main() {
	// The kernel ties the death of a child to that of the thread that started it.
	runtime.LockOSThread()
	o := parse()
	err := isolate.Run(o.inside, func(dir string) error {
		return errors.Join(kubelet.RemoveCgroup(groupOf(dir)), kubelet.RemoveCgroup(peer.BerthGroup(dir, "berth")))
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostilebench:", err)
		os.Exit(1)
	}
}

// groupOf names the cgroup above those of all pods.
func groupOf(dir string) string { return "hostilebench-" + filepath.Base(dir) }

// handler is what Berth's handler says besides, as on a node of production: this much of a log a second, and at once.
const handler = "log_rate = 262144\nlog_burst = 4194304\n"

// inside measures, with all files below dir.
func (o options) inside(dir string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	peers, err := filepath.Abs(o.peers)
	if err != nil {
		return err
	}
	berth, err := filepath.Abs(o.berth)
	if err != nil {
		return err
	}
	r, err := report.New()
	if err != nil {
		return err
	}
	images, err := peer.ServeImages(filepath.Join(dir, "certs.d"), filepath.Join(dir, "rootfs"))
	if err != nil {
		return fmt.Errorf("serve images: %w", err)
	}
	s := hostile.Suite{
		Setup: peer.Setup{
			Programs: filepath.Join(peers, "bin"), Plugins: filepath.Join(peers, "cni"), Berth: berth, Dir: dir,
			CgroupParent: "/" + groupOf(dir), Images: images, Handler: handler,
		},
		Names: peer.Names, Report: r, Progress: os.Stderr,
		Ways: hostile.Ways, Rounds: o.rounds, Neighbours: o.neighbours, Pods: o.pods, Cycles: o.cycles,
		Settle: o.settle,
	}
	if o.only != "" {
		s.Names = []string{o.only}
	}
	for _, name := range s.Names {
		r.Runtimes = append(r.Runtimes, report.Runtime{Name: name})
	}
	if o.ways != "" {
		s.Ways = strings.Split(o.ways, ",")
		r.Settings["ways"] = o.ways
	}
	for name, value := range map[string]int{
		"rounds": o.rounds, "neighbours": o.neighbours, "pods": o.pods, "cycles": o.cycles,
	} {
		r.Settings[name] = fmt.Sprint(value)
	}
	r.Settings["settle"] = o.settle.String()
	if err := s.Run(ctx); err != nil {
		return errors.Join(err, r.WriteTable(os.Stdout))
	}
	return r.WriteAll(o.table, o.json)
}
