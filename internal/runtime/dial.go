package runtime

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// DialInside connects to a port of the loopback interface of a sandbox that has a network stack of its own, in which
// only the handler's runtime can: by its port-forward, which hands the sandbox the other end of a connection and then
// is done.
func DialInside(ctx context.Context, r *Runtime, pod string, h Handler, port uint16) (*net.UnixConn, error) {
	d, err := os.OpenFile(r.cfg.dir(pod), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	name := "forward-" + pod[:min(12, len(pod))] + "-" + rand.Text()     // an earlier daemon may have left a socket
	short := fmt.Sprintf("/proc/%d/fd/%d/%s", os.Getpid(), d.Fd(), name) // the whole path may be too long for a socket
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the sandbox's connection: %w", err)
	}
	l.SetUnlinkOnClose(false) // the short name means something else by then
	defer func() { _ = l.Close(); _ = os.Remove(filepath.Join(r.cfg.dir(pod), name)) }()
	taken := make(chan *net.UnixConn, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			conn = nil
		}
		taken <- conn
	}()
	args := append(h.args(), "port-forward", "--stream", short, pod, strconv.Itoa(int(port)))
	err = r.cfg.Helper(ctx, name, exec.Command(h.Path, args...))
	_ = l.Close() // one that has not connected by now does not any more
	conn := <-taken
	switch {
	case err == nil && conn != nil:
		return conn, nil
	case conn != nil:
		_ = conn.Close()
	case err == nil:
		err = fmt.Errorf("%s port-forward ended without a connection", filepath.Base(h.Path))
	}
	return nil, fmt.Errorf("connect to port %d inside the sandbox of pod %s: %w", port, pod, err)
}
