// Command pullbench measures what pulling images costs Berth and containerd, side by side.
//
//	pullbench -peers DIR -berth DIR [flags]
//
// Everything happens in memory, isolated, and nothing stays behind. It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/bench/internal/footprint"
	"berth/bench/internal/peer"
	"berth/bench/internal/pull"
	"berth/bench/internal/report"
	"berth/internal/config"
	"berth/test/fixture"
	"berth/test/isolate"
)

// options are the command line.
type options struct {
	peers, berth, before, only, cases, json, table, note string
	rounds                                               int
	small, daemon                                        bool
}

func parse() options {
	var o options
	flag.StringVar(&o.peers, "peers", "", "folder with bin/ (containerd, its shim and runc) and cni/ (plugins)")
	flag.StringVar(&o.berth, "berth", "bin", "folder of berth and berth-monitor")
	flag.StringVar(&o.before, "before", "", "the same of another build, to be measured in place of containerd")
	flag.BoolVar(&o.daemon, "before-in-daemon", false, "have that one unpack in its daemon, by images.unpack")
	flag.StringVar(&o.only, "only", "", "start only this runtime")
	flag.StringVar(&o.cases, "cases", "", "measure only these, separated by commas; a wrong one lists all")
	flag.StringVar(&o.json, "json", "", "also write the report with every sample to this file")
	flag.StringVar(&o.table, "table", "", "also write the table to this file")
	flag.StringVar(&o.note, "note", "", "what else the report should say of this run")
	flag.IntVar(&o.rounds, "rounds", 7, "pulls of each case; slow links take half as many")
	flag.BoolVar(&o.small, "small", false, "images of a tenth of the size, to try the benchmark itself")
	flag.Parse()
	return o
}

func main() {
	// The kernel ties the death of a child to that of the thread that started it.
	runtime.LockOSThread()
	o := parse()
	if err := isolate.Run(o.inside, pull.CleanUp); err != nil {
		fmt.Fprintln(os.Stderr, "pullbench:", err)
		os.Exit(1)
	}
}

// inside measures, with all files of registry and runtimes on a tmpfs at dir.
func (o options) inside(dir string) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	cases, err := pull.Choose(o.keys())
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755,size=75%"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return err
	}
	registry, err := fixture.StartRegistry(fixture.RegistryOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	r, err := report.New()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "making images of this machine's /usr")
	if r.Notes, err = pull.Publish(registry, dir, cases, o.sizes()); err != nil {
		return err
	}
	return o.measure(ctx, dir, registry.Addr, cases, r)
}

func (o options) keys() []string {
	if o.cases == "" {
		return nil
	}
	return strings.Split(o.cases, ",")
}

func (o options) sizes() pull.Sizes {
	s := pull.Usual
	if o.small {
		s = pull.Sizes{Six: s.Six / 10, New: s.New / 10, Large: s.Large / 10, Forty: s.Forty / 10}
	}
	return s
}

func (o options) measure(ctx context.Context, dir, registry string, cases []pull.Case, r *report.Report) error {
	setup, err := o.setup(dir, registry)
	if err != nil {
		return err
	}
	if err := peer.WriteHosts(setup.Images.Certs, registry); err != nil {
		return err
	}
	s := pull.Suite{
		Setup: setup, Names: peer.Names, Registry: registry, Report: r, Progress: os.Stderr, Rounds: o.rounds,
	}
	switch {
	case o.only != "":
		s.Names = []string{o.only}
	case o.before != "":
		s.Names = []string{"berth", peer.Before}
	}
	for _, name := range s.Names {
		r.Runtimes = append(r.Runtimes, report.Runtime{Name: name}) // in this order; the version comes when it runs
	}
	r.Settings["rounds"] = fmt.Sprint(o.rounds)
	busy, err := others()
	if err != nil {
		return err
	}
	r.Notes = append(r.Notes, unpackers(), busy)
	if o.note != "" {
		r.Notes = append(r.Notes, o.note)
	}
	err = s.Run(ctx, cases)
	r.Runtimes = append(r.Runtimes, report.Runtime{Name: pull.FloorName, Version: "the blobs, four at once, thrown away"})
	if err != nil {
		return errors.Join(err, r.WriteTable(os.Stdout)) // what there is, and no file that looks whole
	}
	return r.WriteAll(o.table, o.json)
}

// others says how much of the machine somebody else uses, now that nothing of ours runs.
func others() (string, error) {
	const watch = 3 * time.Second
	before, err := footprint.Idle()
	if err != nil {
		return "", err
	}
	time.Sleep(watch)
	after, err := footprint.Idle()
	busy := float64(runtime.NumCPU()) - float64(after-before)/float64(watch)
	return fmt.Sprintf("before the first pull other programs kept %.1f of %d cores busy", max(0, busy), runtime.NumCPU()),
		err
}

// unpackers says whether containerd finds the programs that it prefers to its own code.
func unpackers() string {
	for _, program := range []string{"igzip", "unpigz"} {
		if path, err := exec.LookPath(program); err == nil {
			return "containerd inflates gzip with " + path
		}
	}
	return "containerd inflates gzip by itself: neither igzip nor unpigz is installed"
}

func (o options) setup(dir, registry string) (peer.Setup, error) {
	peers, err := filepath.Abs(o.peers)
	if err != nil {
		return peer.Setup{}, err
	}
	berth, err := filepath.Abs(o.berth)
	if err != nil {
		return peer.Setup{}, err
	}
	before, err := filepath.Abs(o.before)
	unpack := ""
	if o.daemon {
		unpack = config.UnpackInDaemon
	}
	return peer.Setup{
		BeforeUnpack: unpack,
		Programs:     filepath.Join(peers, "bin"), Plugins: filepath.Join(peers, "cni"),
		Berth: berth, Before: before, Dir: dir,
		CgroupParent: pull.CgroupParent(dir), Idle: pull.Idle,
		Images: peer.Images{Pause: pull.Pause(registry), Certs: filepath.Join(dir, "certs.d")},
	}, err
}
