package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
	"berth/internal/fault"
	"berth/internal/thread"
	"berth/internal/userns"
)

// Namespaces are those of one pod.
type Namespaces struct {
	// Net, IPC, UTS and User are the files at which they are pinned. Those that are "" are not made: the pod has the
	// host's. The others belong to User, if there is one.
	Net, IPC, UTS, User string
	// IDs are those of the user namespace, and Holder is the program that makes it; see userns.Hold.
	IDs    userns.Mapping
	Holder string
	// Hostname is set in the UTS namespace.
	Hostname string
	// Sysctls are set inside, named with dots or slashes. Those of an interface that CNI will make are left to
	// SetInterfaceSysctls.
	Sysctls map[string]string
	// Defaults are set inside before Sysctls. One of a namespace that is not made is passed over, and so is one that
	// the kernel does not know or refuses.
	Defaults map[string]string
}

// pin is one namespace to make.
type pin struct {
	kind, path string // kind as in /proc/<pid>/ns
	flag       int
}

// pins are those that are wanted, in the order in which they are mounted.
func (ns Namespaces) pins() []pin {
	all := []pin{
		{"user", ns.User, unix.CLONE_NEWUSER}, {"uts", ns.UTS, unix.CLONE_NEWUTS}, {"ipc", ns.IPC, unix.CLONE_NEWIPC},
		{"net", ns.Net, unix.CLONE_NEWNET},
	}
	var wanted []pin
	for _, p := range all {
		if p.path != "" {
			wanted = append(wanted, p)
		}
	}
	return wanted
}

// Pin makes the namespaces, configures them, and bind-mounts each at its file, so that they live without a process.
// It may be repeated: what is there whole is left alone, what is there in part is made anew, so Pin must not be called
// for a pod whose containers run. After an error nothing of it is left.
func Pin(ns Namespaces) error {
	pins := ns.pins()
	for name := range ns.Sysctls {
		if _, err := ns.sysctl(name); err != nil {
			return fmt.Errorf("pin namespaces: %w", err)
		}
	}
	if len(pins) == 0 || pinned(pins) {
		return nil
	}
	if err := Unpin(ns); err != nil {
		return err
	}
	if err := thread.Run(func() error { return makePins(ns, pins) }); err != nil {
		return errors.Join(fmt.Errorf("pin namespaces: %w", err), Unpin(ns))
	}
	return nil
}

// pinned reports whether all are there. They are mounted only when they are configured.
func pinned(pins []pin) bool {
	for _, p := range pins {
		if !IsNamespace(p.path) {
			return false
		}
	}
	return true
}

func makePins(ns Namespaces, pins []pin) error {
	from := func(kind string) string { return fmt.Sprintf("/proc/self/task/%d/ns/%s", unix.Gettid(), kind) }
	if ns.User != "" {
		held, err := enterHeld(ns, pins)
		if err != nil {
			return err
		}
		defer held.End()
		from = held.Path
		if ns.IPC != "" {
			if err := ownQueues(ns.IDs); err != nil {
				return err
			}
		}
	} else if err := unix.Unshare(flags(pins)); err != nil {
		return fmt.Errorf("unshare: %w", userns.Explain(err, uintptr(flags(pins))))
	}
	if err := configure(ns); err != nil {
		return err
	}
	for _, p := range pins {
		if err := fault.At("network.pin.mount.before"); err != nil {
			return err
		}
		if err := mountPin(p, from(p.kind)); err != nil {
			return err
		}
		if err := fault.At("network.pin.mount.after"); err != nil {
			return err
		}
	}
	return nil
}

func flags(pins []pin) (all int) {
	for _, p := range pins {
		all |= p.flag
	}
	return all
}

// enterHeld makes namespaces that belong to a user namespace, and enters them with the calling thread; the user
// namespace itself it cannot enter.
func enterHeld(ns Namespaces, pins []pin) (*userns.Holder, error) {
	held, err := userns.Hold(ns.Holder, uintptr(flags(pins)), ns.IDs)
	if err != nil {
		return nil, err
	}
	for _, p := range pins {
		if p.flag == unix.CLONE_NEWUSER {
			continue
		}
		if err := join(held.Path(p.kind), p.flag); err != nil {
			held.End()
			return nil, err
		}
	}
	return held, nil
}

// ownQueues gives the message queues of the calling thread's IPC namespace to root of its user namespace. The kernel
// makes their file system together with the namespace, and for whoever makes that: the host's root, who is nobody in a
// pod. A runtime could not set its SELinux label then. Where the kernel cannot mount it by a descriptor alone (before
// 5.2), nobody it is.
func ownQueues(ids userns.Mapping) error {
	ctx, err := unix.Fsopen("mqueue", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENODEV) { // or has no queues
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the message queues: %w", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return fmt.Errorf("find the message queues: %w", err)
	}
	queues, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount the message queues: %w", err)
	}
	defer unix.Close(queues)
	uid, gid, _ := ids.Host(0, 0) // which a mapping has
	if err := unix.Fchownat(queues, "", int(uid), int(gid), unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("give the message queues to root of the user namespace: %w", err)
	}
	return nil
}

// join has the calling thread join a namespace.
func join(path string, flag int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), flag); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}

func mountPin(p pin, from string) error {
	if err := os.MkdirAll(filepath.Dir(p.path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(p.path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_ = f.Close()
	if err := unix.Mount(from, p.path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the %s namespace at %s: %w", p.kind, p.path, err)
	}
	return nil
}

// configure sets up the namespaces of the calling thread.
func configure(ns Namespaces) error {
	if ns.UTS != "" && ns.Hostname != "" {
		if err := unix.Sethostname([]byte(ns.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", ns.Hostname, err)
		}
	}
	ns.applyDefaults()
	if err := ns.apply(func(s sysctl) bool { return !s.later }); err != nil {
		return err
	}
	if ns.Net == "" {
		return nil
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("bring the loopback interface up: %w", err)
	}
	return nil
}

// loopbackUp brings lo up in the calling thread's network namespace. The kernel then gives it 127.0.0.1 and, where it
// has IPv6, ::1.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, lo); err != nil {
		return err
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// Unpin unmounts the pins and removes their files. The namespaces end with their last process. It is nil when nothing
// is there.
func Unpin(ns Namespaces) error {
	var errs []error
	for _, p := range ns.pins() {
		errs = append(errs, unpin(p.path))
	}
	return errors.Join(errs...)
}

// unmount is unix.Unmount; a test counts its calls.
var unmount = unix.Unmount

// unpin removes a pin, and unmounts it only while its file says that it is a mount point: each unmount waits for the
// kernel's table of mounts, which takes seconds on a node with very many of them.
func unpin(path string) error {
	for {
		err := os.Remove(path)
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
			return nil
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("remove namespace pin: %w", err)
		}
		err = unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == unix.EINVAL {
			return coveredError(path)
		}
		if err != nil && err != unix.ENOENT {
			return fmt.Errorf("unmount namespace %s: %w", path, err)
		}
		if err := fault.At("network.unpin.unmounted"); err != nil {
			return err
		}
	}
}

// coveredError says that a pin cannot be reached. The first "ip netns add" of a boot mounts the directory over itself,
// which leaves the pins that are there below, unless the file system that has the directory is shared.
func coveredError(path string) error {
	dir := filepath.Dir(path)
	remedy := fmt.Sprintf("drain the node and run \"umount -l %s\", which also takes the pins of pods that were made "+
		"after that mount, or reboot the node; \"mount --make-rshared /run\", before pods are made, prevents it", dir)
	return &fail.Error{
		Kind: errdefs.ErrFailedPrecondition, Detail: fail.Detail{Remedy: remedy},
		Err: fmt.Errorf("remove namespace pin %s: it is below another mount, which was put over %s later: %s", path, dir,
			remedy),
	}
}

// SweepPins removes the pins in dir that are named by prefix and the id of a pod that is not live.
func SweepPins(dir, prefix string, live func(id string) bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep namespace pins: %w", err)
	}
	var errs []error
	for _, e := range entries {
		// Another instance's prefix may begin with this one; what is left of its name is then no id.
		if id, ok := strings.CutPrefix(e.Name(), prefix); ok && isID(id) && !live(id) {
			errs = append(errs, unpin(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func isID(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }
