package userns

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/fail"
)

// TestMain is also the program that a Holder runs.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "hold" {
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

func one(inside, host, size uint32) []Range { return []Range{{inside, host, size}} }

func TestCheck(t *testing.T) {
	good := one(0, 100000, 65536)
	for name, c := range map[string]struct {
		m    Mapping
		want string
	}{
		"good":      {Mapping{good, good}, ""},
		"two":       {Mapping{append(one(1, 70000, 10), one(0, 5000, 1)...), good}, ""},
		"none":      {Mapping{nil, good}, "no uids"},
		"no gids":   {Mapping{good, nil}, "no gids"},
		"no root":   {Mapping{good, one(1, 100000, 10)}, "gid 0 is not mapped"},
		"empty":     {Mapping{one(0, 1, 0), good}, "empty"},
		"inside":    {Mapping{append(one(0, 1000, 10), one(9, 2000, 10)...), good}, "overlap"},
		"outside":   {Mapping{append(one(0, 1000, 10), one(20, 1009, 10)...), good}, "overlap"},
		"too large": {Mapping{one(0, 1<<31, 1<<31), good}, "beyond"},
		"too many":  {Mapping{make([]Range, 341), good}, "at most 340"},
	} {
		err := c.m.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, wanted %q", name, err, c.want)
		}
	}
}

func TestHost(t *testing.T) {
	m := Mapping{append(one(0, 100000, 10), one(50, 7000, 5)...), one(0, 200000, 10)}
	for _, c := range []struct {
		uid, gid, wantUID, wantGID uint32
		ok                         bool
	}{{0, 0, 100000, 200000, true}, {52, 9, 7002, 200009, true}, {10, 0, 0, 0, false}, {55, 0, 0, 0, false},
		{0, 10, 0, 0, false}} {
		u, g, ok := m.Host(c.uid, c.gid)
		if ok != c.ok || ok && (u != c.wantUID || g != c.wantGID) {
			t.Errorf("%d:%d is %d:%d, %v", c.uid, c.gid, u, g, ok)
		}
	}
}

func TestHold(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h, err := Hold("/proc/self/exe", unix.CLONE_NEWNET, Mapping{one(0, 100000, 65536), one(0, 200000, 65536)})
	if err != nil {
		t.Fatal(err)
	}
	proc := strings.TrimSuffix(h.Path("user"), "/ns/user")
	for file, want := range map[string]string{"uid_map": "0 100000 65536", "gid_map": "0 200000 65536"} {
		data, err := os.ReadFile(proc + "/" + file)
		if got := strings.Join(strings.Fields(string(data)), " "); err != nil || got != want {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	for kind, differs := range map[string]bool{"user": true, "net": true, "ipc": false} {
		theirs, err := os.Readlink(h.Path(kind))
		if err != nil {
			t.Fatal(err)
		}
		ours, _ := os.Readlink("/proc/self/ns/" + kind)
		if (theirs != ours) != differs {
			t.Errorf("%s namespace: %s, ours is %s", kind, theirs, ours)
		}
	}
	h.End()
	if _, err := os.Stat(proc); err == nil {
		t.Error("the holder is still there")
	}
	if _, err := Hold("/proc/self/exe", 0, Mapping{}); err == nil {
		t.Error("a namespace without ids was made")
	}
}

// TestNoMoreNamespaces makes a network namespace where none is allowed. It is in a user namespace of its own, whose
// limits are those of who is in it.
func TestNoMoreNamespaces(t *testing.T) {
	const within = "BERTH_TEST_NO_MORE_NAMESPACES"
	if os.Getenv(within) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestNoMoreNamespaces$")
		cmd.Env = append(os.Environ(), within+"=1")
		root := []syscall.SysProcIDMap{{Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root, Pdeathsig: unix.SIGKILL,
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_net_namespaces", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	const flags = unix.CLONE_NEWNET | unix.CLONE_NEWUTS
	runtime.LockOSThread() // for good: the thread may be elsewhere
	err := unix.Unshare(flags)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("unshare: %v", err)
	}
	err = Explain(err, flags)
	if errors.Is(err, unix.ENOSPC) || fail.KindOf(err).Name != "Unavailable" ||
		!strings.Contains(err.Error(), "user.max_net_namespaces (now 0)") || strings.Contains(err.Error(), "max_user") {
		t.Errorf("%s: %v", fail.KindOf(err).Name, err)
	}
}
