package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

const (
	// leaf is the daemon's own place in a unit whose cgroup is delegated to it: helpers have groups beside it.
	leaf = "daemon"
	// control is where systemd runs the other commands of such a unit, among them those of ExecStopPost=.
	control = ".control"
)

// Delegated is the cgroup of the unit that this process is in, if systemd has delegated it (Delegate=yes) so that
// groups may be made below; "" otherwise. A process that is alone in such a unit moves into a group of its own there,
// where it can: a unit whose processes are in it and in groups below is untidy, and forbidden only once somebody
// limits those groups.
func Delegated(mount string) (string, error) {
	dir, err := cgroup.Own(mount)
	if err != nil {
		return "", err
	}
	if up := filepath.Dir(dir); filepath.Base(dir) == leaf && isDelegated(up) {
		return up, nil
	}
	if !isDelegated(dir) {
		return "", nil
	}
	if !alone(dir) {
		return dir, nil // another unit, in which this was started by hand
	}
	if g, err := cgroup.Make(dir, leaf); err == nil {
		_ = cgroup.Write(filepath.Join(g.Path(), "cgroup.procs"), strconv.Itoa(os.Getpid()))
	}
	return dir, nil
}

// Leaf is the group of this process in the delegated unit that Delegated has found, if it is one of its own there.
func Leaf(unit, mount string) (string, bool) {
	dir, err := cgroup.Own(mount)
	return dir, err == nil && dir == filepath.Join(unit, leaf)
}

// FreeUnit has the delegated unit that this process is a command of take a process into its own cgroup again. Where the
// daemon has given controllers to the groups there and something that it started lives on in one of them, the kernel
// would let no next daemon in, which systemd before 254 starts there.
func FreeUnit(mount string) error {
	dir, err := cgroup.Own(mount)
	if err != nil {
		return err
	}
	unit := filepath.Dir(dir)
	if filepath.Base(dir) != control || !isDelegated(unit) {
		return fmt.Errorf("this process is in the cgroup %s, and no command of a unit with Delegate=yes: systemd runs it "+
			"when the daemon has ended (ExecStopPost=)", dir)
	}
	if err := cgroup.DropControllers(unit); err != nil {
		return fmt.Errorf("take the controllers from the groups below %s: %w", unit, err)
	}
	return nil
}

// isDelegated looks for the mark that systemd puts on what it delegates.
func isDelegated(dir string) bool {
	var buf [8]byte
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		if n, err := unix.Getxattr(dir, name, buf[:]); err == nil && string(buf[:n]) == "1" {
			return true
		}
	}
	return false
}

// alone reports whether this process is the only one directly in a group.
func alone(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err == nil && strings.TrimSpace(string(data)) == strconv.Itoa(os.Getpid())
}
