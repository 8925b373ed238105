package runtime

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/test/timeouts"
)

// monitorFlags are the build flags of the monitor under test.
var monitorFlags []string

// host is what all tests share: the monitor's program, a root file system of busybox, a runtime.
var host struct{ dir, monitor, rootfs, runtime, tracking, state string }

// underCrun, in the environment, has the tests run with crun. Its value is the program of the monitor, which they copy.
const underCrun = "BERTH_TEST_CRUN"

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most of them wait most of the time
	os.Exit(withHost(m))
}

func withHost(m *testing.M) int {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests need root")
		return 1
	}
	defer func() {
		_ = unix.Unmount(filepath.Join(host.dir, "cgroup2"), unix.MNT_DETACH)
		_ = unix.Unmount(host.state, unix.MNT_DETACH)
		_ = os.RemoveAll(host.dir)
	}()
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "set up:", err)
		return 1
	}
	return m.Run()
}

func setUp() (err error) {
	if host.dir, err = os.MkdirTemp("", "berth-runtime-"); err != nil {
		return err
	}
	host.state = filepath.Join(host.dir, "state") // as /run is
	if err := os.Mkdir(host.state, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", host.state, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", host.state, err)
	}
	host.runtime = "runc"
	if os.Getenv(underCrun) != "" {
		host.runtime = "crun"
		if err := hideUnified(); err != nil {
			return err
		}
	}
	if host.runtime, err = exec.LookPath(host.runtime); err != nil {
		return err
	}
	if host.tracking, err = cgroup.Tracking(host.dir); err != nil {
		return err
	}
	if err := buildMonitor(); err != nil {
		return err
	}
	return makeRootfs()
}

// hideUnified takes the cgroup2 hierarchy of a hybrid host, which crun does not like, out of this process's own mount
// namespace.
func hideUnified() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Unmount("/sys/fs/cgroup/unified", 0); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	return nil
}

// buildMonitor builds the monitor, or takes the one of BERTH_BIN where there is no Go. The run with crun copies the one
// of the run that starts it, which is quicker; a copy, since TestMemory counts what monitors share for each run alone.
func buildMonitor() error {
	if built := os.Getenv(underCrun); built != "" {
		host.monitor = filepath.Join(host.dir, "berth-monitor")
		program, err := os.ReadFile(built)
		if err != nil {
			return err
		}
		return os.WriteFile(host.monitor, program, 0o755)
	}
	if _, err := exec.LookPath("go"); err != nil {
		host.monitor = filepath.Join(os.Getenv("BERTH_BIN"), "berth-monitor")
		_, err = os.Stat(host.monitor)
		return err
	}
	host.monitor = filepath.Join(host.dir, "berth-monitor")
	args := append([]string{"build", "-o", host.monitor}, monitorFlags...)
	out, err := exec.Command("go", append(args, "berth/cmd/berth-monitor")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the monitor: %w: %s", err, out)
	}
	return nil
}

// makeRootfs makes a root file system of a static busybox.
func makeRootfs() error {
	host.rootfs = filepath.Join(host.dir, "rootfs")
	for _, d := range []string{"bin", "proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(host.rootfs, d), 0o755); err != nil {
			return err
		}
	}
	box, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return fmt.Errorf("install busybox-static: %w", err)
	}
	if err := os.WriteFile(filepath.Join(host.rootfs, "bin/busybox"), box, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"sh", "sleep", "cat", "yes", "head", "true", "ls", "dd", "stty", "printf", "md5sum",
		"tail", "kill", "seq", "usleep", "readlink", "tr"} {
		if err := os.Symlink("busybox", filepath.Join(host.rootfs, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// TestCrun runs all tests of this package again with crun, in a mount namespace of its own, beside those with runc.
// It tells what failed.
func TestCrun(t *testing.T) {
	t.Parallel()
	if os.Getenv(underCrun) != "" {
		t.Skip("this is the run with crun")
	}
	if _, err := exec.LookPath("crun"); err != nil {
		t.Skip("crun is not installed")
	}
	if testing.Short() {
		t.Skip("short")
	}
	cmd := exec.Command(os.Args[0], "-test.timeout="+timeouts.For(7*time.Minute).String())
	cmd.Env = append(os.Environ(), underCrun+"="+host.monitor)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with crun: %v\n%s", err, out)
	}
}
