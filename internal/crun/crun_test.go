package crun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside tells the test binary that it runs in a mount namespace of its own, with an empty /tmp: other tests of this
// machine use crun, too.
const inside = "BERTH_TEST_CRUN_INSIDE"

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("crun: skipped: needs root")
		os.Exit(0)
	}
	if os.Getenv(inside) == "" {
		os.Exit(again())
	}
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func again() int {
	runtime.LockOSThread()                                         // the child dies with this thread
	args := slices.DeleteFunc(os.Args[1:], func(arg string) bool { // a file below the /tmp that the child does not see
		return strings.HasPrefix(arg, "-test.testlogfile=")
	})
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// killedAt starts crun and kills it when it is about to make its n-th system call. It says whether it came so far.
func killedAt(t *testing.T, program, path string, n int) bool {
	t.Helper()
	runtime.LockOSThread() // whom the kernel lets trace it
	defer runtime.UnlockOSThread()
	cmd := exec.Command(path, "--version")
	cmd.Path = program
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer func() { _ = cmd.Process.Release() }()
	var st unix.WaitStatus
	for stops := 0; ; stops++ {
		if _, err := unix.Wait4(pid, &st, 0, nil); err != nil {
			t.Fatal(err)
		}
		if st.Exited() || st.Signaled() {
			return false
		}
		if stops == n {
			break
		}
		if err := unix.PtraceSyscall(pid, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for !st.Signaled() && !st.Exited() {
		if _, err := unix.Wait4(pid, &st, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	return true
}

// left is what crun has left in /tmp, which it does not leave again.
func left(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/tmp/crun.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(found, " ")
}

// TestDescriptorsMoveAbout executes crun with a stream that has the number just below the program's: the pipe by
// which a child tells that it could not execute takes the next one.
func TestDescriptorsMoveAbout(t *testing.T) {
	path, err := exec.LookPath("crun")
	if err != nil {
		t.Skip("needs crun")
	}
	var below []*os.File // whose numbers the pipe gets first
	for range 4 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		below = append(below, f)
	}
	program, release := Program(path)
	defer release()
	n, err := strconv.Atoi(filepath.Base(program))
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	if err := unix.Dup3(int(below[0].Fd()), n-1, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(n - 1)
	for _, f := range below {
		_ = f.Close()
	}
	stream := uintptr(n - 1)
	attr := &syscall.ProcAttr{Env: []string{}, Files: []uintptr{stream, stream, stream}}
	pid, err := syscall.ForkExec(program, []string{path, "--version"}, attr)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.WaitStatus
	if _, err := unix.Wait4(pid, &st, 0, nil); err != nil || !st.Exited() || st.ExitStatus() != 0 {
		t.Errorf("%v, %v", st, err)
	}
}

// TestKilledAnywhere kills crun before and after each of its system calls. Executed as it is, an old one leaves
// something in /tmp at some of them, which shows that the test can see it.
func TestKilledAnywhere(t *testing.T) {
	path, err := exec.LookPath("crun")
	if err != nil {
		t.Skip("needs crun")
	}
	n, plainly := 0, 0
	for ; killedAt(t, path, path, n); n++ {
		if left(t) != "" {
			plainly++
		}
	}
	t.Logf("killed at %d places, it leaves something at %d", n, plainly)
	for n = 0; ; n++ {
		program, release := Program(path)
		if program == path {
			t.Fatal("it is executed as it is")
		}
		more := killedAt(t, program, path, n)
		release()
		if l := left(t); l != "" {
			t.Errorf("killed at %d it leaves %s", n, l)
		}
		if !more {
			break
		}
	}
	if n < 100 {
		t.Errorf("it was killed at %d places only", n)
	}
}

// copied makes a program with a name of its own.
func copied(t *testing.T, program, name string) string {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestNobodyCanWriteIt tries as root with all capabilities what a container may try that reaches the program at
// /proc/<pid>/exe, while it runs and when it has ended.
func TestNobodyCanWriteIt(t *testing.T) {
	path := copied(t, "/bin/cat", "crun")
	program, release := Program(path)
	cmd := exec.Command(path)
	cmd.Path = program
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release()
	exe, err := unix.Open(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(exe)
	attack(t, "while it runs", exe)
	if err := input.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(output); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	attack(t, "when it has ended", exe)
}

func attack(t *testing.T, when string, exe int) {
	t.Helper()
	name := fmt.Sprintf("/proc/self/fd/%d", exe)
	for what, try := range map[string]func() error{
		"open for writing": func() error { return opened(name, unix.O_WRONLY) },
		"open cut short":   func() error { return opened(name, unix.O_WRONLY|unix.O_TRUNC) },
		"truncate":         func() error { return unix.Truncate(name, 0) },
		"change its mode":  func() error { return unix.Chmod(name, 0o777) },
		"mount it for writing": func() error {
			clear := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
			return unix.MountSetattr(exe, "", unix.AT_EMPTY_PATH, &clear)
		},
		"remount it for writing": func() error { return unix.Mount("", name, "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"mount it elsewhere": func() error {
			fd, err := unix.OpenTree(exe, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		},
	} {
		if err := try(); err != unix.EROFS && err != unix.EINVAL && err != unix.ETXTBSY {
			t.Errorf("%s, %s: %v", when, what, err)
		}
	}
}

func opened(name string, flags int) error {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// TestOthersAreExecutedAsTheyAre has what is not crun, or cannot be executed so, be executed as it is.
func TestOthersAreExecutedAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	script, fifo, link := filepath.Join(dir, "crun"), filepath.Join(dir, "crun-fifo"), filepath.Join(dir, "oci")
	err := errors.Join(os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755), unix.Mkfifo(fifo, 0o755),
		os.Symlink(copied(t, "/bin/true", "crun-1.8"), link))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{script, fifo, "/bin/true", filepath.Join(dir, "none"), dir, "crun"} {
		program, release := Program(path)
		release()
		if program != path {
			t.Errorf("%s: %s", path, program)
		}
	}
	if program, release := Program(link); program == link {
		t.Error("crun behind a link is executed as it is")
	} else {
		release()
	}
	openTree = func(int, string, uint) (int, error) { return -1, unix.ENOSYS }
	defer func() { openTree = unix.OpenTree }()
	if program, release := Program(link); program != link {
		t.Errorf("an old kernel: %s", program)
	} else {
		release()
	}
}

func BenchmarkVersion(b *testing.B) {
	path, err := exec.LookPath("crun")
	if err != nil {
		b.Skip("needs crun")
	}
	for name, open := range map[string]func() (string, func()){
		"as it is": func() (string, func()) { return path, func() {} },
		"detached": func() (string, func()) { return Program(path) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				program, release := open()
				cmd := exec.Command(path, "--version")
				cmd.Path = program
				err := cmd.Run()
				release()
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
