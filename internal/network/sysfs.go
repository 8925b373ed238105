package network

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// WritableSysfs makes the sysfs of a network namespace one that can be mounted writable, until it is closed. The kernel
// has one for all mounts of a namespace, which is read-only as a whole where the first of them was made so: runc mounts
// it so for a container without privileges. Mounts that are read-only stay so by themselves.
func WritableSysfs(netns string) (held *os.File, err error) {
	err = thread.Run(func() error {
		if err := join(netns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		ctx, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("open sysfs: %w", err)
		}
		defer unix.Close(ctx)
		if err := unix.FsconfigCreate(ctx); err != nil {
			return fmt.Errorf("find sysfs: %w", err)
		}
		fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("mount sysfs: %w", err)
		}
		held = os.NewFile(uintptr(fd), "sysfs")
		if err = unix.FsconfigSetFlag(ctx, "rw"); err == nil {
			err = unix.FsconfigReconfigure(ctx)
		}
		if err != nil {
			held.Close()
			return fmt.Errorf("make sysfs writable: %w", err)
		}
		return nil
	})
	return held, err
}
