package layer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// callsDir is the variable that makes a test process unpack the layer of TestCalls into the directory that it names.
const callsDir = "BERTH_TEST_CALLS"

// The layer of TestCalls: callsWide directories beside each other in another one, each with callsFiles files and a
// symlink.
const callsWide, callsFiles = 40, 10

func callsLayer(owner int) (items []item) {
	items = append(items, dir("top", 0o755))
	for d := range callsWide {
		in := fmt.Sprintf("top/d%d", d)
		items = append(items, dir(in, 0o755), symlink(in+"/link", "f0"))
		for f := range callsFiles {
			items = append(items, file(fmt.Sprintf("%s/f%d", in, f), strings.Repeat("x", 100*f+1)))
		}
	}
	for i := range items {
		items[i].Uid, items[i].Gid = owner, owner
	}
	return items
}

// TestCallsChild unpacks between two calls that no other code makes.
func TestCallsChild(t *testing.T) {
	d := os.Getenv(callsDir)
	if d == "" {
		t.Skip("it is the child of TestCalls")
	}
	owner := 0
	if strings.HasSuffix(d, "owned") {
		owner = 1000
	}
	body := archive(t, callsLayer(owner)...)
	_ = unix.Close(callsMark)
	_, err := Unpack(t.Context(), bytes.NewReader(body), d, Limits{})
	_ = unix.Close(callsMark)
	if err != nil {
		t.Fatal(err)
	}
}

// callsMark is no descriptor.
const callsMark = -1234567

// TestCalls counts what each entry of a layer costs of system calls.
func TestCalls(t *testing.T) {
	const files, dirs, links, once = callsWide * callsFiles, callsWide + 1, callsWide, 16
	// A directory is opened to put something into it, and its parent again for nothing.
	plain := map[string]int{
		"openat": files, "pwrite64": files, "close": files + dirs, "utimensat": files + dirs + links,
		"mkdirat": dirs, "openat2": dirs, "symlinkat": links,
	}
	owned := map[string]int{"fchown": files, "fchownat": dirs + links}
	for name, add := range map[string]map[string]int{"root": nil, "owned": owned} {
		t.Run(name, func(t *testing.T) {
			got := tracedUnpack(t, t.TempDir()+"/"+name)
			for _, call := range callNames {
				if want := plain[call] + add[call]; got[call] > want+once || got[call] < want {
					t.Errorf("%s: %d times, not %d and up to %d for the layer itself", call, got[call], want, once)
				}
			}
		})
	}
}

var callNumbers = map[uint64]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_CLOSE: "close", unix.SYS_PWRITE64: "pwrite64",
	unix.SYS_FCHOWN: "fchown", unix.SYS_FCHOWNAT: "fchownat", unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHMODAT: "fchmodat",
	unix.SYS_UTIMENSAT: "utimensat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_FCNTL: "fcntl",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_READLINKAT: "readlinkat",
	unix.SYS_LSETXATTR: "lsetxattr", unix.SYS_FSTAT: "fstat",
}

var callNames = []string{
	"openat", "openat2", "close", "pwrite64", "fchown", "fchownat", "fchmod", "fchmodat", "utimensat", "mkdirat",
	"symlinkat", "fcntl", "unlinkat", "readlinkat", "lsetxattr", "fstat",
}

// tracedUnpack runs TestCallsChild and counts its system calls between the marks.
func tracedUnpack(t *testing.T, d string) map[string]int {
	if err := os.Mkdir(d, 0o755); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // who traces is a thread
	defer runtime.UnlockOSThread()
	var out bytes.Buffer
	cmd := exec.Command(os.Args[0], "-test.run=^TestCallsChild$")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), callsDir+"="+d), &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := counter{calls: map[string]int{}}
	status, err := c.follow(cmd.Process.Pid)
	_ = cmd.Wait() // for what it wrote: its end has been seen already
	if err != nil || status.ExitStatus() != 0 {
		t.Fatalf("%v, exit status %d: %s", err, status.ExitStatus(), &out)
	}
	return c.calls
}

// counter counts system calls of a process that it traces.
type counter struct {
	calls map[string]int
	on    bool
}

// follow lets the process and all its threads run until it has exited.
func (c *counter) follow(pid int) (end unix.WaitStatus, err error) {
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != nil {
		return ws, err
	}
	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return ws, err
	}
	for tid, signal := pid, 0; ; {
		if err := unix.PtraceSyscall(tid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return ws, err
		}
		for {
			if tid, err = unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil); err != nil && !errors.Is(err, unix.EINTR) {
				return ws, err
			}
			if err == nil && ws.Stopped() {
				break
			}
			if err == nil && tid == pid {
				return ws, nil
			}
		}
		signal = 0
		switch s := ws.StopSignal(); {
		case s == unix.SIGTRAP|0x80:
			c.stop(tid)
		case s != unix.SIGTRAP && s != unix.SIGSTOP:
			signal = int(s)
		}
	}
}

// stop counts a call that begins.
func (c *counter) stop(tid int) {
	const getSyscallInfo, entry, at = 0x420e, 1, 24
	var info [88]byte
	size, at0 := uintptr(len(info)), uintptr(unsafe.Pointer(&info))
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), size, at0, 0, 0)
	if errno != 0 || info[0] != entry {
		return
	}
	number, first := binary.NativeEndian.Uint64(info[at:]), int32(binary.NativeEndian.Uint64(info[at+8:]))
	if number == unix.SYS_CLOSE && first == callsMark {
		c.on = !c.on
		return
	}
	if c.on {
		c.calls[callNumbers[number]]++
	}
}
