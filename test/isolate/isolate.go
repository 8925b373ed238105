// Package isolate keeps tests and benchmarks from changing the machine that they run on.
//
// Run and Enter run a whole program in namespaces that are thrown away afterwards: its own processes, mounts and
// network. When the program ends, however it ends, every process that it left is killed, and every mount, link and
// filter rule goes. Files and cgroups are the machine's own: whoever makes some removes them.
//
// Space is a mount and a network namespace in which a test starts a daemon. Group is a cgroup for one test.
package isolate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const stage = "BERTH_ISOLATE"

// Enter divides a program in three. Outside, it starts the same program again in new namespaces, waits for it, and
// returns inside=false with its error. The copy becomes the init in them and starts the program a third time; only
// there Enter returns inside=true. Enter is the first thing that main calls.
//
// Each setup runs in the init, before the program starts, with the folder of Run. It may make more namespaces for its
// thread, which the program then starts in.
func Enter(setup ...func(dir string) error) (inside bool, err error) {
	switch os.Getenv(stage) {
	case "":
		return false, again("init", unix.CLONE_NEWPID|unix.CLONE_NEWNS|unix.CLONE_NEWNET)
	case "init":
		runtime.LockOSThread() // what a setup gives to its thread is what the program inherits
		if err := furnish(); err != nil {
			return false, err
		}
		for _, f := range setup {
			if err := f(os.Getenv(folder)); err != nil {
				return false, err
			}
		}
		return false, serveAsInit()
	default:
		return true, os.Unsetenv(stage)
	}
}

// Outside tells whether this process is the one that the user started.
func Outside() bool { return os.Getenv(stage) == "" }

// folder is how the outermost process tells the innermost where to keep everything.
const folder = "BERTH_ISOLATE_DIR"

// Run runs inside isolated, with a folder on the machine's disk for everything it keeps. Outside, when all is over,
// cleanUp removes what is not isolated: cgroups; the folder goes by itself. The setups are those of Enter. Call it
// first in main.
func Run(inside, cleanUp func(dir string) error, setup ...func(dir string) error) error {
	if Outside() {
		return around(cleanUp)
	}
	in, err := Enter(setup...)
	if err != nil || !in {
		return err
	}
	return inside(os.Getenv(folder))
}

func around(cleanUp func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("/var/tmp", "cb-")
	if err != nil {
		return err
	}
	lock, err := hold(dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() { err = errors.Join(err, cleanUp(dir), os.RemoveAll(dir), lock.Close()) }()
	if err := os.Setenv(folder, dir); err != nil {
		return err
	}
	_, err = Enter()
	return err
}

// hold locks a folder for as long as this process lives.
func hold(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Sweep cleans up after programs that were killed before they could, where their folder has a file of this name.
func Sweep(having string, cleanUp func(dir string) error) error {
	found, err := filepath.Glob("/var/tmp/cb-*/" + having)
	for _, path := range found {
		dir := filepath.Dir(path)
		lock, held := hold(dir)
		if held != nil {
			continue // it is in use
		}
		err = errors.Join(err, cleanUp(dir), os.RemoveAll(dir), lock.Close())
	}
	return err
}

func command(next string, flags uintptr) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), stage+"="+next)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func again(next string, flags uintptr) error {
	cmd, err := command(next, flags)
	if err != nil {
		return err
	}
	// ^C reaches the whole group: the innermost program answers it by cleaning up, and the outer ones wait for that.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run isolated: %w", err)
	}
	return nil
}

// furnish makes the namespaces usable: mounts that do not show outside, its own /proc, empty /run and /var/lib (where
// plugins and daemons keep what they share), and loopback.
func furnish() error {
	for _, kind := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|kind, ""); err != nil {
			return fmt.Errorf("set mount propagation: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount an empty %s: %w", dir, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

// serveAsInit starts the program, and reaps whatever is orphaned until the program ends.
func serveAsInit() error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	cmd, err := command("inside", 0)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for orphans: %w", err)
		case pid == cmd.Process.Pid && status.ExitStatus() == 0:
			return nil
		case pid == cmd.Process.Pid:
			os.Exit(1) // it has said why
		}
	}
}
