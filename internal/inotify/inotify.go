// Package inotify says what to do where the kernel watches no more directories: its limits are those of all processes
// of a user together (inotify(7)).
package inotify

import (
	"errors"
	"fmt"
	"syscall"
)

// Explain adds to an error of opening a watcher, or of having it watch a directory, which limit is reached.
func Explain(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE): // of the user or, by the same number, of the process
		return fmt.Errorf("%w: raise the sysctl fs.inotify.max_user_instances, or the limit of open files of the daemon", err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: raise the sysctl fs.inotify.max_user_watches", err)
	}
	return err
}
