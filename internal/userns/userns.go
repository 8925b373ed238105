// Package userns makes user namespaces, and other namespaces that belong to one.
//
// A process with threads, as the daemon is, can neither make a user namespace for itself nor enter one. So a Holder
// makes it: a process that does nothing, in namespaces of its own, until they are pinned or used. It ends with whoever
// made it.
package userns

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fail"
)

// A Range says that Size ids from Inside on, in the namespace, are those from Host on outside of it.
type Range struct {
	Inside, Host, Size uint32
}

// Mapping is all ids of a user namespace.
type Mapping struct {
	UIDs, GIDs []Range
}

// Check says why no namespace can have this mapping: one that is empty, leaves root out, or gives an id twice.
func (m Mapping) Check() error {
	return errors.Join(check("uid", m.UIDs), check("gid", m.GIDs))
}

func check(kind string, ranges []Range) error {
	if len(ranges) == 0 {
		return fmt.Errorf("no %ss are mapped", kind)
	}
	if len(ranges) > 340 {
		return fmt.Errorf("%d ranges of %ss: the kernel takes at most 340", len(ranges), kind)
	}
	root := false
	for i, r := range ranges {
		if r.Size == 0 {
			return fmt.Errorf("the range of %ss from %d on is empty", kind, r.Inside)
		}
		if uint64(r.Inside)+uint64(r.Size) > math.MaxUint32 || uint64(r.Host)+uint64(r.Size) > math.MaxUint32 {
			return fmt.Errorf("the range of %d %ss from %d (on the host %d) on goes beyond the last id", r.Size, kind, r.Inside,
				r.Host)
		}
		root = root || r.Inside == 0
		for _, o := range ranges[:i] {
			if overlap(r.Inside, o.Inside, r.Size, o.Size) || overlap(r.Host, o.Host, r.Size, o.Size) {
				return fmt.Errorf("the ranges of %ss from %d (on the host %d) and from %d (on the host %d) on overlap", kind,
					o.Inside, o.Host, r.Inside, r.Host)
			}
		}
	}
	if !root {
		return fmt.Errorf("%s 0 is not mapped", kind)
	}
	return nil
}

func overlap(a, b, sizeA, sizeB uint32) bool {
	return uint64(a) < uint64(b)+uint64(sizeB) && uint64(b) < uint64(a)+uint64(sizeA)
}

// Host is what a user and a group of the namespace are outside of it; not ok when one of them is not mapped.
func (m Mapping) Host(uid, gid uint32) (hostUID, hostGID uint32, ok bool) {
	u, okUID := outside(m.UIDs, uid)
	g, okGID := outside(m.GIDs, gid)
	return u, g, okUID && okGID
}

func outside(ranges []Range, id uint32) (uint32, bool) {
	for _, r := range ranges {
		if id >= r.Inside && id-r.Inside < r.Size {
			return r.Host + (id - r.Inside), true
		}
	}
	return 0, false
}

// A Holder is a process that holds a user namespace, and others that belong to it.
type Holder struct {
	cmd *exec.Cmd
	in  io.Closer
}

// Hold starts program, which must do nothing when called with the one argument `hold` but wait for the end of its
// standard input, in a user namespace with this mapping and in new namespaces of the kinds that flags (CLONE_NEWNET, …)
// says. The process dies with the calling thread: so the caller locks its goroutine to its thread until End.
func Hold(program string, flags uintptr, m Mapping) (*Holder, error) {
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	cmd := exec.Command(program, "hold")
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | flags, UidMappings: ranges(m.UIDs), GidMappings: ranges(m.GIDs),
		GidMappingsEnableSetgroups: true,
		Pdeathsig:                  unix.SIGKILL,
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", Explain(err, unix.CLONE_NEWUSER|flags))
	}
	return &Holder{cmd, in}, nil
}

func ranges(in []Range) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(in))
	for i, r := range in {
		out[i] = syscall.SysProcIDMap{ContainerID: int(r.Inside), HostID: int(r.Host), Size: int(r.Size)}
	}
	return out
}

// Explain adds what to do to an error of clone or unshare with these flags. Where the node allows no more namespaces
// the kernel says ENOSPC, which the result is not: no disk is full.
func Explain(err error, flags uintptr) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return fail.New(errdefs.ErrUnavailable, "%s: the node allows no more namespaces: raise the sysctl %s",
			err.Error(), strings.Join(limits(flags), " or "))
	case errors.Is(err, unix.EINVAL) && flags&unix.CLONE_NEWUSER != 0:
		return fmt.Errorf("%w: the kernel has no user namespaces (CONFIG_USER_NS)", err)
	}
	return err
}

// limits are the sysctls that bound namespaces of these flags, with their values.
func limits(flags uintptr) (all []string) {
	for _, kind := range []struct {
		name string
		flag uintptr
	}{
		{"user", unix.CLONE_NEWUSER}, {"net", unix.CLONE_NEWNET}, {"ipc", unix.CLONE_NEWIPC},
		{"uts", unix.CLONE_NEWUTS}, {"mnt", unix.CLONE_NEWNS},
	} {
		if flags&kind.flag != 0 {
			name := "max_" + kind.name + "_namespaces"
			value, _ := os.ReadFile("/proc/sys/user/" + name)
			all = append(all, fmt.Sprintf("user.%s (now %s)", name, strings.TrimSpace(string(value))))
		}
	}
	return all
}

// Path is where a namespace of the holder is, by its name below /proc/<pid>/ns. It is there until End.
func (h *Holder) Path(kind string) string {
	return "/proc/" + strconv.Itoa(h.cmd.Process.Pid) + "/ns/" + kind
}

// End ends the process. What of its namespaces is neither pinned nor in use ends with it.
func (h *Holder) End() {
	_ = h.cmd.Process.Kill()
	_ = h.in.Close()
	_ = h.cmd.Wait() // it was killed: there is nothing to learn
}
