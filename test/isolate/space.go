package isolate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Unified is where a cgroup v1 "hybrid" machine mounts its cgroup2 hierarchy.
const Unified = "/sys/fs/cgroup/unified"

// Space is a mount and a network namespace of their own, in which a test starts a daemon and looks at what it did. What
// is mounted, linked or filtered inside never shows outside, and goes when the space is closed and its last process has
// ended. Files and cgroups are shared with the machine: a socket made inside can be dialed from outside. The methods
// may be called concurrently.
type Space struct {
	mnt, net *os.File
	calls    chan func()
	once     sync.Once
}

// NewSpace makes a space. Each setup runs once inside it, before anything else does.
func NewSpace(setup ...func() error) (*Space, error) {
	s := &Space{calls: make(chan func())}
	ready := make(chan error)
	go onOwnThread(func() { s.hold(setup, ready) })
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("make a private mount and network namespace: %w", err)
	}
	return s, nil
}

// HideUnified takes the cgroup2 hierarchy of a hybrid machine out of sight, because crun refuses to run beside it. It
// is a setup for NewSpace, and does nothing where there is no such hierarchy.
func HideUnified() error {
	var st unix.Statfs_t
	if err := unix.Statfs(Unified, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil
	}
	return unix.Unmount(Unified, unix.MNT_DETACH)
}

// onOwnThread runs f on a thread that ends with it, so that its namespaces are carried nowhere else. It is never the
// main thread: that one cannot end, and what it is in shows as /proc/self.
func onOwnThread(f func()) {
	runtime.LockOSThread() // never unlocked, but for the main thread
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	defer runtime.UnlockOSThread()
	began := make(chan struct{})
	go onOwnThread(func() { // on another thread, since this one is held until it has begun
		close(began)
		f()
	})
	<-began
}

// hold owns the thread that made the namespaces and starts the processes that must die with them.
func (s *Space) hold(setup []func() error, ready chan<- error) {
	if err := s.enterNew(setup); err != nil {
		s.closeFiles()
		ready <- err
		return
	}
	ready <- nil
	for call := range s.calls {
		call()
	}
}

func (s *Space) enterNew(setup []func() error) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	// Private first, to hide from the machine; then shared, because volumes with mount propagation need a shared
	// source.
	for _, kind := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|kind, ""); err != nil {
			return fmt.Errorf("set mount propagation: %w", err)
		}
	}
	if err := upLoopback(); err != nil {
		return err
	}
	for _, f := range setup {
		if err := f(); err != nil {
			return err
		}
	}
	return s.open()
}

func (s *Space) open() (err error) {
	task := fmt.Sprintf("/proc/self/task/%d/ns/", unix.Gettid())
	if s.mnt, err = os.Open(task + "mnt"); err != nil {
		return err
	}
	s.net, err = os.Open(task + "net")
	return err
}

func upLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	return nil
}

// Start starts cmd inside the space. A command whose SysProcAttr has a Pdeathsig gets that signal when the space is
// closed or this process dies, and not before.
func (s *Space) Start(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	s.calls <- func() { done <- cmd.Start() }
	return <-done
}

// Run starts cmd inside the space and waits for it.
func (s *Space) Run(cmd *exec.Cmd) error {
	if err := s.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Do runs f on a thread of its own inside the space. Goroutines that f starts are outside.
func (s *Space) Do(f func() error) error {
	done := make(chan error, 1)
	go onOwnThread(func() {
		err := s.enter()
		if err == nil {
			err = f()
		}
		done <- err
	})
	return <-done
}

func (s *Space) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(s.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace: %w", err)
	}
	if err := unix.Setns(int(s.net.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// DialContext connects from inside the space. The address must be numeric.
func (s *Space) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = s.Do(func() (e error) {
		conn, e = (&net.Dialer{}).DialContext(ctx, network, address)
		return e
	})
	return conn, err
}

// Listen listens inside the space, at a numeric address.
func (s *Space) Listen(network, address string) (l net.Listener, err error) {
	err = s.Do(func() (e error) {
		l, e = net.Listen(network, address)
		return e
	})
	return l, err
}

// MountNS and NetNS identify the namespaces as /proc/<pid>/ns/mnt and …/net show them.
func (s *Space) MountNS() string { return identify(s.mnt, "mnt") }

// NetNS identifies the network namespace as /proc/<pid>/ns/net shows it.
func (s *Space) NetNS() string { return identify(s.net, "net") }

func identify(f *os.File, kind string) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s:[%d]", kind, info.Sys().(*syscall.Stat_t).Ino)
}

// Close ends the thread that holds the space, and with it what Start gave a Pdeathsig. Other processes keep the
// namespaces until they end.
func (s *Space) Close() error {
	s.once.Do(func() { close(s.calls) })
	return s.closeFiles()
}

func (s *Space) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{s.mnt, s.net} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
