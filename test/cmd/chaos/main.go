// Command chaos strikes a container runtime under load, and says what was lost.
//
//	chaos [-peer berth|containerd|crio] [-mix daemon|mixed|disks|clock|none|class,…] [-runtime runc|crun]
//	      [-strikes N] [-for D] [-seed S] [-longest D] [-clients N] [-verbose]
//
// It tells how far it is each minute, and prints a table at the end. Its exit code is 1 when anything was lost that
// must not be. Everything happens in namespaces of its own. It needs root.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"berth/test/chaos"
	"berth/test/isolate"
	"berth/test/node"
)

// freezer is the environment variable that tells the run the socket of the process that freezes disks.
const freezer = "BERTH_CHAOS_SOCKET"

func main() {
	// The kernel ties the death of a child to that of the thread that started it.
	runtime.LockOSThread()
	if err := run(parse()); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func parse() chaos.Options {
	var o chaos.Options
	flag.StringVar(&o.Peer, "peer", chaos.Berth, "the runtime that is struck: berth, containerd or crio")
	flag.StringVar(&o.Mix, "mix", "daemon",
		"what is struck: daemon, mixed, disks, clock (which is the machine's), none, or classes such as runtime,stop:monitor")
	flag.StringVar(&o.Runtime, "runtime", "runc", "the OCI runtime: runc or crun")
	flag.IntVar(&o.Strikes, "strikes", 0, "how many strikes, 0 for as many as the time allows")
	flag.Uint64Var(&o.Seed, "seed", uint64(time.Now().Unix()), "of the schedule")
	flag.DurationVar(&o.For, "for", time.Minute, "how long to strike, 0 for as long as the strikes take")
	flag.DurationVar(&o.Longest, "longest", 10*time.Second,
		"how long at most a process is stopped, a disk hangs or is full")
	flag.IntVar(&o.Clients, "clients", 6, "how many pods live at a time")
	flag.StringVar(&o.Berth, "berth", "", "the folder of Berth's programs; when empty, BERTH_BIN or what is built")
	flag.StringVar(&o.Programs, "programs", "",
		"the folder of the peer's programs: containerd and its shim, or crio, conmon and pinns")
	flag.BoolVar(&o.Verbose, "verbose", false, "tell of each strike")
	flag.Parse()
	return o
}

func run(o chaos.Options) error {
	socket, end, err := os.Getenv(freezer), func() error { return nil }, error(nil)
	if isolate.Outside() {
		if socket, end, err = chaos.Freezer(); err != nil {
			return fmt.Errorf("start the process that freezes disks: %w", err)
		}
		if err := chaos.Sweep(); err != nil {
			fmt.Fprintln(os.Stderr, "chaos: clean up after a run that was killed:", err)
		}
		if o.Berth, err = programs(o); err != nil {
			return errors.Join(err, end())
		}
		_ = os.Setenv(freezer, socket)
		_ = os.Setenv("BERTH_BIN", o.Berth)
	}
	err = isolate.Run(func(dir string) error { return strike(o, dir, socket) }, chaos.CleanUp)
	return errors.Join(err, end())
}

// programs is the folder of Berth's programs, which are built where they are not named.
func programs(o chaos.Options) (string, error) {
	if o.Berth != "" || o.Peer != chaos.Berth {
		return o.Berth, nil
	}
	return node.Binaries(false)
}

func strike(o chaos.Options, dir, socket string) error {
	o.Dir, o.Freezer, o.Out = dir, socket, os.Stdout
	if o.Berth == "" {
		o.Berth = os.Getenv("BERTH_BIN")
	}
	o.Version = version(o)
	report, err := chaos.Run(o)
	if err != nil {
		return err
	}
	fmt.Print(report.Table())
	if report.Failed() {
		return errors.New("something was lost, or nothing was struck")
	}
	return nil
}

// version is what the program of the daemon says of itself.
func version(o chaos.Options) string {
	cmd, field := exec.Command(o.Berth+"/berth", "version"), 1
	switch o.Peer {
	case chaos.CRIO:
		cmd, field = exec.Command(o.Programs+"/crio", "--version"), 2
	case chaos.Containerd:
		cmd, field = exec.Command(o.Programs+"/containerd", "--version"), 2
	}
	out, _ := cmd.Output() // berth says last that no daemon answers, which is an error
	words := strings.Fields(string(out))
	if len(words) <= field {
		return "unknown"
	}
	return words[field]
}
