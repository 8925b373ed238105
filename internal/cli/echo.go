package cli

import (
	"sync"

	"golang.org/x/sys/unix"
)

// echo is whether a terminal shows what is typed at it. One goroutine hides that for a password, and another may give
// the terminal back meanwhile, for good: the command ends then.
type echo struct {
	fd int // -1: there is no terminal

	mu     sync.Mutex    // guards what follows
	before *unix.Termios // while it is hidden
	given  bool
}

// hide has the terminal show nothing until show is called. After giveBack it does nothing.
func (e *echo) hide() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.given {
		return errInterrupted
	}
	before, err := unix.IoctlGetTermios(e.fd, unix.TCGETS)
	if err != nil {
		return err
	}
	now := *before
	now.Lflag = now.Lflag&^unix.ECHO | unix.ICANON | unix.ISIG
	now.Iflag |= unix.ICRNL
	if err := unix.IoctlSetTermios(e.fd, unix.TCSETS, &now); err != nil {
		return err
	}
	e.before = before
	return nil
}

// show has the terminal be as it was before hide.
func (e *echo) show() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.before != nil {
		_ = unix.IoctlSetTermios(e.fd, unix.TCSETS, e.before)
		e.before = nil
	}
}

// giveBack is show for good.
func (e *echo) giveBack() {
	e.mu.Lock()
	e.given = true
	e.mu.Unlock()
	e.show()
}
