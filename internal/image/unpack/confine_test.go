package unpack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/helper"
	"berth/internal/image/layer"
	"berth/test/timeouts"
)

// TestMain is the confined process too: what starts it gives it a job.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && strings.HasPrefix(os.Args[1], "{") {
		os.Exit(probed(os.Args[1]))
	}
	code := m.Run()
	if probeDir != "" {
		_ = os.RemoveAll(probeDir)
	}
	os.Exit(code)
}

// probed confines this process as a job is, tells what it can still do, and waits for the end of its standard input.
func probed(arg string) int {
	var job Job
	if err := json.Unmarshal([]byte(arg), &job); err != nil {
		return 2
	}
	attempts := probes() // the first of them are made while there is a /proc to look at
	if err := Confine(job); err != nil {
		printError(err.Error())
		return 3
	}
	found := map[string]string{}
	for name, try := range attempts {
		if !strings.HasPrefix(name, "fatal ") {
			found[name] = fmt.Sprint(try())
		}
	}
	if job.More {
		found["files above, by another root"] = fmt.Sprint(climb())
	}
	raw, err := json.Marshal(found)
	if err == nil {
		_, err = unix.Write(controlFD, raw)
	}
	order, rerr := io.ReadAll(fdReader(blobFD))
	if try := attempts["fatal "+string(order)]; try != nil {
		printError(fmt.Sprint("still here: ", try()))
	}
	if errors.Join(err, rerr) != nil {
		return 4
	}
	return 0
}

// climb makes a directory the root while it has one above it open, and goes up from there.
func climb() error {
	above, err := unix.Open("/", unix.O_PATH, 0)
	if err == nil {
		err = unix.Mkdir("/below", 0o700)
	}
	if err == nil {
		err = unix.Chroot("/below")
	}
	if err == nil {
		err = unix.Fchdir(above)
	}
	if err == nil {
		_, err = unix.Openat(unix.AT_FDCWD, "../../../../etc/passwd", unix.O_RDONLY, 0)
	}
	return err
}

// probes are what a process that a layer has taken over would try, by what it would gain.
func probes() map[string]func() error {
	parent := unix.Getppid()
	raw := func(nr uintptr, args ...uintptr) func() error {
		a := append(args, 0, 0, 0, 0, 0, 0)
		return func() error {
			_, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
			if errno == 0 {
				return nil
			}
			return errno
		}
	}
	open := func(at int, path string, flags int) func() error {
		return func() error {
			_, err := unix.Openat(at, path, flags, 0o600)
			return err
		}
	}
	return map[string]func() error{
		"files of the node":         open(unix.AT_FDCWD, "/etc/passwd", unix.O_RDONLY),
		"files above the layer":     open(unix.AT_FDCWD, "../../../../etc/passwd", unix.O_RDONLY),
		"processes":                 open(unix.AT_FDCWD, "/proc/self/mem", unix.O_RDWR),
		"a layer below":             open(lowersFD, "new", unix.O_CREAT|unix.O_WRONLY),
		"a file of a layer below":   open(lowersFD, "f", unix.O_WRONLY),
		"above a layer below":       open(lowersFD, "../outside", unix.O_RDONLY),
		"reading a layer below":     open(lowersFD, "f", unix.O_RDONLY),
		"writing the layer":         open(unix.AT_FDCWD, "/new", unix.O_CREAT|unix.O_WRONLY),
		"a whiteout":                func() error { return unix.Mknod("/w", unix.S_IFCHR, 0) },
		"a device":                  func() error { return unix.Mknod("/null", unix.S_IFCHR, int(unix.Mkdev(1, 3))) },
		"a mark of the overlay":     func() error { return unix.Setxattr("/", "trusted.overlay.opaque", []byte("y"), 0) },
		"a label":                   func() error { return unix.Setxattr("/", "security.test", []byte("x"), 0) },
		"another root":              raw(unix.SYS_CHROOT),
		"a mount":                   raw(unix.SYS_MOUNT),
		"a new mount":               raw(unix.SYS_FSOPEN),
		"a namespace":               raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		"another's namespace":       raw(unix.SYS_SETNS, 0),
		"a socket":                  raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM),
		"the network":               raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM),
		"descriptors of others":     raw(unix.SYS_RECVMSG, controlFD),
		"a signal":                  raw(unix.SYS_KILL, uintptr(parent), 0),
		"a signal to a thread":      raw(unix.SYS_TGKILL, uintptr(parent), uintptr(parent), 0),
		"a signal through a file":   raw(unix.SYS_FCNTL, blobFD, unix.F_SETOWN, uintptr(parent)),
		"tracing":                   raw(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(parent)),
		"memory of others":          raw(unix.SYS_PROCESS_VM_READV, uintptr(parent)),
		"a program":                 raw(unix.SYS_EXECVE),
		"a child":                   raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD)),
		"a child by clone3":         raw(unix.SYS_CLONE3),
		"a file by its handle":      raw(unix.SYS_OPEN_BY_HANDLE_AT),
		"another user":              raw(unix.SYS_SETUID, 1000),
		"more capabilities":         raw(unix.SYS_CAPSET),
		"larger limits":             raw(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_DATA),
		"memory of a file":          raw(unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE, blobFD, 0),
		"flags of files":            raw(unix.SYS_IOCTL, blobFD, unix.FS_IOC_SETFLAGS),
		"io_uring":                  raw(unix.SYS_IO_URING_SETUP, 1),
		"bpf":                       raw(unix.SYS_BPF),
		"keys":                      raw(unix.SYS_KEYCTL),
		"dumps":                     raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1),
		"a thread":                  startThread,
		"fatal memory":              exhaust,
		"fatal calls of x32":        raw(unix.SYS_GETPID | x32),
		"fatal memory, not touched": func() error { _ = make([]byte, 1<<33); return nil },
	}
}

func startThread() error {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(done)
	}()
	<-done
	return nil
}

func exhaust() error {
	var all [][]byte
	for range 1 << 12 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	return fmt.Errorf("%d MiB are there", len(all))
}

const probeMemory = 32 << 20 // what a layer may keep in memory

// confined is a process that is confined as the program is.
type confined struct {
	process *os.Process
	control *os.File
	blob    *os.File
	errors  *os.File
	found   map[string]string
}

// probeProgram is this test, built as Berth's programs are, without the C library: that one makes calls of its own,
// which the filter refuses, and aborts.
var probeProgram = sync.OnceValues(func() (string, error) {
	if !withC {
		return os.Executable()
	}
	dir, err := os.MkdirTemp("", "probe")
	if err != nil {
		return "", err
	}
	probeDir = dir
	program := filepath.Join(dir, "unpack.test")
	build := exec.Command("go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the test without the C library: %w: %s", err, out)
	}
	return program, nil
})

var probeDir string // of the program that probeProgram has built

func start(t *testing.T, more bool) *confined {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	self, err := probeProgram()
	if err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	for _, dir := range []string{"layer", "lower"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"outside", "lower/f"} {
		if err := os.WriteFile(filepath.Join(base, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := &confined{found: map[string]string{}}
	in, blob, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.blob, c.control = blob, os.NewFile(uintptr(pair[0]), "control")
	theirs := os.NewFile(uintptr(pair[1]), "theirs")
	if c.errors, err = os.Create(filepath.Join(base, "errors")); err != nil {
		t.Fatal(err)
	}
	dir := mountOf(t, filepath.Join(base, "layer"), 0)
	lower := mountOf(t, filepath.Join(base, "lower"), unix.MOUNT_ATTR_RDONLY)
	job := Job{Lowers: 1, More: more, Limits: layer.Limits{Memory: probeMemory}, Threads: 2}
	job.Memory = MemoryFor(job.Limits)
	args, err := job.Arguments()
	if err != nil {
		t.Fatal(err)
	}
	crew := &helper.Crew{Program: self, Capabilities: Capabilities(), Nice: 10, Slack: TimerSlack}
	env := []string{"GODEBUG=containermaxprocs=0,updatemaxprocs=0"} // as the program has it
	c.process, err = crew.Start(args, env, Files(in, c.errors, dir, theirs, []*os.File{lower}))
	for _, f := range []*os.File{in, theirs, dir, lower} {
		_ = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.process.Kill()
		_, _ = c.process.Wait()
		_, _, _ = c.blob.Close(), c.control.Close(), c.errors.Close()
	})
	return c
}

func mountOf(t *testing.T, path string, attributes uint64) *os.File {
	t.Helper()
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attributes}); err != nil {
		t.Skip("needs mount_setattr:", err)
	}
	return os.NewFile(uintptr(fd), path)
}

// tell returns what the process has found.
func (c *confined) tell(t *testing.T) {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := c.control.Read(buf)
	if err == nil {
		err = json.Unmarshal(buf[:n], &c.found)
	}
	if err != nil {
		_ = c.blob.Close() // it ends now, if it has not
		state, werr := c.process.Wait()
		text, _ := os.ReadFile(c.errors.Name())
		t.Fatalf("%v: %v, %v: %.500s", err, state, werr, text)
	}
}

// TestConfinement tries from inside what a process must not be able to do, and what it must.
func TestConfinement(t *testing.T) {
	for _, more := range []bool{false, true} {
		t.Run(fmt.Sprint("more=", more), func(t *testing.T) { confinement(t, more) })
	}
}

func confinement(t *testing.T, more bool) {
	c := start(t, more)
	c.tell(t)
	want := map[string]error{
		"files of the node": unix.ENOENT, "files above the layer": unix.ENOENT, "processes": unix.ENOENT,
		"a layer below": unix.EROFS, "a file of a layer below": unix.EROFS, "above a layer below": unix.ENOENT,
		"a child by clone3": unix.ENOSYS,
		// What its work takes.
		"reading a layer below": nil, "writing the layer": nil, "a whiteout": nil, "a thread": nil,
	}
	if more { // EFAULT is of the arguments
		want["another root"], want["descriptors of others"] = unix.EFAULT, unix.EFAULT
		if got := c.found["files above, by another root"]; got != fmt.Sprint(unix.ENOENT) {
			t.Errorf("files above, by another root: %s", got)
		}
	}
	for name := range probes() {
		if strings.HasPrefix(name, "fatal ") {
			continue
		}
		expected, known := want[name]
		if !known {
			expected = unix.EPERM
		}
		if got := c.found[name]; got != fmt.Sprint(expected) {
			t.Errorf("%s: %s, wanted %v", name, got, expected)
		}
	}
}

// TestConfinementFromOutside reads what the kernel says of the process.
func TestConfinementFromOutside(t *testing.T) {
	c := start(t, false)
	c.tell(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	caps := uint64(0)
	for _, n := range Capabilities() {
		caps |= 1 << n
	}
	for _, line := range []string{
		fmt.Sprintf("CapPrm:\t%016x", caps), fmt.Sprintf("CapEff:\t%016x", caps), fmt.Sprintf("CapBnd:\t%016x", caps),
		"CapInh:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(string(status), line+"\n") {
			t.Errorf("no %q in\n%s", line, status)
		}
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.process.Pid))
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", c.process.Pid, thread.Name()))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread of a probe has ended
		}
		if err != nil || !strings.Contains(string(text), "Seccomp:\t2\n") {
			t.Errorf("thread %s has no filter: %v\n%s", thread.Name(), err, text)
		}
	}
	if score, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.process.Pid)); string(score) != "1000\n" {
		t.Errorf("oom_score_adj is %q", score)
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, c.process.Pid)
	if err != nil || nice != 20-10 { // as the call returns it
		t.Errorf("the priority is %d, %v", nice, err)
	}
	slack, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", c.process.Pid))
	if want := fmt.Sprintln(TimerSlack.Nanoseconds()); err != nil || string(slack) != want {
		t.Errorf("the slack of its timers is %s, %v", slack, err)
	}
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", c.process.Pid, d.Name()))
		if !expectedDescriptor(d.Name(), to) {
			t.Errorf("descriptor %s leads to %s", d.Name(), to)
		}
	}
}

// expectedDescriptor knows those that the process is given, what the probes have opened, and those of the Go runtime.
func expectedDescriptor(n, to string) bool {
	switch {
	case len(n) == 1 && n != "3" && n < "6":
		return true
	case strings.HasPrefix(to, "anon_inode:"), to == "/new", to == "/f":
		return true
	}
	return false
}

// TestConfinementKills has what nothing honest does, and what would take the node's memory, end the process. How the Go
// runtime ends where it gets no memory is not always the same.
func TestConfinementKills(t *testing.T) {
	for _, order := range []string{"memory", "memory, not touched", "calls of x32"} {
		if order == "calls of x32" && runtime.GOARCH != "amd64" {
			continue
		}
		t.Run(strings.ReplaceAll(order, " ", "-"), func(t *testing.T) {
			c := start(t, false)
			c.tell(t)
			if _, err := c.blob.WriteString(order); err != nil {
				t.Fatal(err)
			}
			_ = c.blob.Close()
			state := waitFor(t, c.process)
			text, _ := os.ReadFile(c.errors.Name())
			if state.Success() || strings.Contains(string(text), "still here") {
				t.Errorf("%v: %.300s", state, text)
			}
			if order == "calls of x32" && !strings.Contains(state.String(), "bad system call") {
				t.Errorf("%v: %.300s", state, text)
			}
			used, most := state.SysUsage().(*syscall.Rusage).Maxrss<<10, MemoryFor(layer.Limits{Memory: probeMemory})
			if used > most+(32<<20) { // what is mapped of the program is not counted
				t.Errorf("it had %d MiB, where its limit is %d", used>>20, most>>20)
			}
		})
	}
}

func waitFor(t *testing.T, p *os.Process) *os.ProcessState {
	t.Helper()
	done := make(chan *os.ProcessState, 1)
	go func() {
		state, _ := p.Wait()
		done <- state
	}()
	select {
	case state := <-done:
		return state
	case <-time.After(timeouts.For(time.Minute)):
		t.Fatal("the process lives")
	}
	return nil
}
