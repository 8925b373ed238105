// Command attackbench measures what hostile images and registries cost Berth and containerd, side by side.
//
//	attackbench -peers DIR -berth DIR [flags]
//
// Everything happens in memory, isolated, and nothing stays behind. It needs root.
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/bench/internal/attack"
	"berth/bench/internal/kubelet"
	"berth/bench/internal/peer"
	"berth/bench/internal/report"
	"berth/test/isolate"
)

// options are the command line.
type options struct {
	peers, berth, only, json, table string
	rounds                          int
	patience                        time.Duration
}

func parse() options {
	var o options
	flag.StringVar(&o.peers, "peers", "", "folder with bin/ (containerd, its shim and runc) and cni/ (plugins)")
	flag.StringVar(&o.berth, "berth", "bin", "folder of berth and the programs beside it")
	flag.StringVar(&o.only, "only", "", "start only this runtime")
	flag.StringVar(&o.json, "json", "", "also write the report with every sample to this file")
	flag.StringVar(&o.table, "table", "", "also write the table to this file")
	flag.IntVar(&o.rounds, "rounds", 3, "how often each attack is tried")
	flag.DurationVar(&o.patience, "patience", 2*time.Minute, "how long a pull may take")
	flag.Parse()
	return o
}

func main() {
	// The kernel ties the death of a child to that of the thread that started it.
	runtime.LockOSThread()
	o := parse()
	err := isolate.Run(o.inside, func(dir string) error { return kubelet.RemoveCgroup(peer.BerthGroup(dir, "berth")) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "attackbench:", err)
		os.Exit(1)
	}
}

// inside measures, with all files of the runtimes on a tmpfs at dir.
func (o options) inside(dir string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755,size=75%"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
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
	s := attack.Suite{
		Setup: peer.Setup{
			Programs: filepath.Join(peers, "bin"), Plugins: filepath.Join(peers, "cni"), Berth: berth, Dir: dir,
			Images: peer.Images{Pause: "localhost/pause:none", Certs: filepath.Join(dir, "certs.d")},
		},
		Names: peer.Names, Report: r, Progress: os.Stderr, Rounds: o.rounds, Patience: o.patience,
	}
	if o.only != "" {
		s.Names = []string{o.only}
	}
	for _, name := range s.Names {
		r.Runtimes = append(r.Runtimes, report.Runtime{Name: name})
	}
	r.Settings["rounds"] = fmt.Sprint(o.rounds)
	if err := s.Run(ctx); err != nil {
		return errors.Join(err, r.WriteTable(os.Stdout))
	}
	return r.WriteAll(o.table, o.json)
}
