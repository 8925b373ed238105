package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// favorDynmods is an option of the cgroup2 hierarchy, since Linux 6.0. Without it, whoever moves a process to another
// cgroup waits until each processor has passed a grace period of RCU, which is some 8 ms; with it some forks and exits
// take a little longer (cgroup-v2.rst, Mounting). It counts for the moves in all hierarchies, those of v1 as well.
// Since Linux 6.18 it also has a move wait for the forks of the moved process alone, and not for those of the whole
// node, and stays so until the node boots.
const favorDynmods = "favordynmods"

// FavorsDynmods reports whether the hierarchy that is mounted at tracking has the kernel favor changes of cgroups.
func FavorsDynmods(tracking string) (bool, error) {
	options, err := optionsAt(tracking)
	return slices.Contains(options, favorDynmods), err
}

// FavorDynmods has the kernel favor changes of cgroups: moves of processes between them, which OCI runtimes make for
// each start and many for each exec. The other options of the hierarchy stay as they are. Nothing undoes it but another
// who mounts the hierarchy again.
func FavorDynmods(tracking string) error {
	options, err := optionsAt(tracking)
	if err != nil || slices.Contains(options, favorDynmods) {
		return err
	}
	if err := reconfigure(tracking, append(options, favorDynmods)); err != nil {
		return fmt.Errorf("set the option %s of the cgroup2 hierarchy at %s: %w", favorDynmods, tracking, err)
	}
	favored, err := FavorsDynmods(tracking)
	if err == nil && !favored {
		err = fmt.Errorf("the kernel has ignored the option %s of the cgroup2 hierarchy at %s, as it does in a cgroup "+
			"namespace", favorDynmods, tracking)
	}
	return err
}

// reconfigure gives the hierarchy these options and no others: the kernel takes away those that are not named. It does
// not touch the flags of the mount, as mount(2) would.
func reconfigure(tracking string, options []string) error {
	fs, err := unix.Fspick(unix.AT_FDCWD, tracking, unix.FSPICK_CLOEXEC|unix.FSPICK_NO_AUTOMOUNT)
	if err != nil {
		return os.NewSyscallError("fspick", err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if err := unix.FsconfigSetFlag(fs, o); errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("the kernel does not know %s (%s has come with Linux 6.0)", o, favorDynmods)
		} else if err != nil {
			return os.NewSyscallError("fsconfig "+o, err)
		}
	}
	return os.NewSyscallError("fsconfig", unix.FsconfigReconfigure(fs))
}

// optionsAt are the options of the hierarchy that is mounted at a directory.
func optionsAt(dir string) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find the options of the cgroup2 hierarchy: %w", err)
	}
	options, there := optionsOf(string(data), fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if !there {
		return nil, fmt.Errorf("no cgroup2 hierarchy is mounted at %s", dir)
	}
	return options, nil
}

// optionsOf looks in a mountinfo file for a mount of the cgroup2 hierarchy with this device number. All have the same
// options.
func optionsOf(mountinfo, device string) (options []string, there bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - cgroup2 ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) >= 5 && len(right) == 2 && left[2] == device {
			return slices.DeleteFunc(strings.Split(right[1], ","), isAccess), true
		}
	}
	return nil, false
}

// isAccess reports whether an option of a mount says how it may be used, and none of its file system.
func isAccess(option string) bool { return option == "rw" || option == "ro" }
