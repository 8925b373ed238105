package isolate

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

func openSpace(t *testing.T, setup ...func() error) *Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	s, err := NewSpace(setup...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestMountsStayInside(t *testing.T) {
	dir := t.TempDir()
	s := openSpace(t, HideUnified)
	err := s.Do(func() error { return unix.Mount("none", dir, "tmpfs", 0, "") })
	if err != nil {
		t.Fatal(err)
	}
	inside := mounts(t, s)
	if !strings.Contains(inside, dir) {
		t.Error("the mount is missing inside")
	}
	if strings.Contains(inside, " "+Unified+" ") {
		t.Error("the cgroup2 hierarchy of the hybrid machine still shows inside")
	}
	if outside, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(outside), dir) {
		t.Error("the mount shows outside")
	}
}

func mounts(t *testing.T, s *Space) string {
	t.Helper()
	out := new(strings.Builder)
	cmd := exec.Command("cat", "/proc/self/mountinfo")
	cmd.Stdout = out
	if err := s.Run(cmd); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestNetworkIsPrivate(t *testing.T) {
	s := openSpace(t)
	var names []string
	err := s.Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return err
	})
	if err != nil || len(names) != 1 || names[0] != "lo" {
		t.Errorf("links inside: %v, %v; wanted lo alone", names, err)
	}
	l, err := s.Listen("tcp", "127.83.47.29:0") // where nobody else listens outside
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), timeouts.For(20*time.Second))
	defer cancel()
	conn, err := s.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatalf("dial from inside: %v", err)
	}
	_ = conn.Close()
	if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the listener inside was reached from outside")
	}
}

func TestCloseEndsWhatDependsOnIt(t *testing.T) {
	s := openSpace(t)
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.Start(cmd); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("the process died early: %v", err)
	}
	_ = s.Close()
	err := cmd.Wait()
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || st.Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v; wanted SIGKILL when the space closed", err)
	}
}

func TestSetupErrorIsReported(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	if _, err := NewSpace(func() error { return os.ErrInvalid }); err == nil {
		t.Error("NewSpace ignored a failing setup")
	}
}
