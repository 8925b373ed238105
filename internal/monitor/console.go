package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// consoleSocket is where a runtime sends a terminal's master, in the container's directory. The runtime gets the name
// relative to that directory, in which it runs: the whole path may be too long for a socket.
const consoleSocket = "tty"

// consoleName is what a terminal's master is called among files.
const consoleName = "console"

// consoleTimeout bounds the wait for a master after the runtime has returned.
const consoleTimeout = 5 * time.Second

// console receives a terminal's master from the runtime.
type console struct {
	fd   int
	path string
}

func listenConsole(dir string) (*console, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("console socket: %w", err)
	}
	defer unix.Close(d)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("console socket: %w", err)
	}
	c := &console{fd, filepath.Join(dir, consoleSocket)}
	_ = os.Remove(c.path)
	short := fmt.Sprintf("/proc/self/fd/%d/%s", d, consoleSocket)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: short}); err != nil {
		c.close()
		return nil, fmt.Errorf("console socket: %w", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		c.close()
		return nil, fmt.Errorf("console socket: %w", err)
	}
	return c, nil
}

// master takes the descriptor that the runtime has sent.
func (c *console) master() (*os.File, error) {
	if err := waitReadable(c.fd); err != nil {
		return nil, err
	}
	conn, _, err := unix.Accept4(c.fd, unix.SOCK_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	defer unix.Close(conn)
	if err := waitReadable(conn); err != nil {
		return nil, err
	}
	name, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(conn, name, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	fds := parseRights(oob[:n])
	if len(fds) != 1 {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("console: the runtime sent %d descriptors, not one", len(fds))
	}
	_ = unix.SetNonblock(fds[0], true)
	return os.NewFile(uintptr(fds[0]), consoleName), nil
}

func waitReadable(fd int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(consoleTimeout/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("console: %w", err)
		}
		if n == 0 {
			return fmt.Errorf("console: the runtime sent no terminal within %v", consoleTimeout)
		}
		return nil
	}
}

func (c *console) close() {
	_ = unix.Close(c.fd)
	_ = os.Remove(c.path)
}

// parseRights returns the descriptors in a control message.
func parseRights(oob []byte) []int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var all []int
	for _, m := range msgs {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			all = append(all, fds...)
		}
	}
	return all
}
