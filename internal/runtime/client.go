package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// client is a connection to one monitor.
type client struct {
	conn   *net.UnixConn
	onExit func(ctr string, e *wire.Exit)
	onLost func()

	send sync.Mutex // guards writing to conn

	mu      sync.Mutex // guards what follows
	next    uint64
	waiting map[uint64]chan answer
	err     error // why the connection is lost
	closing bool  // the monitor is meant to go
	pid     int
	held    map[string][]*os.File // by container: what a monitor that takes over needs
}

// answer is a reply and the descriptors beside it.
type answer struct {
	*wire.Reply
	fds []*os.File
}

// dial connects to the monitor of a run directory. The path through /proc keeps below a socket's limit of 108 bytes.
func dial(dir string) (*net.UnixConn, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/m.sock", d.Fd()), Net: "unixpacket"})
}

func newClient(conn *net.UnixConn, onExit func(string, *wire.Exit), onLost func()) *client {
	c := &client{conn: conn, onExit: onExit, onLost: onLost, waiting: map[uint64]chan answer{}, held: map[string][]*os.File{}}
	go c.read()
	return c
}

func (c *client) lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// read takes replies and exits until the connection is lost.
func (c *client) read() {
	oob := make([]byte, unix.CmsgSpace(4*wire.MaxFDs))
	buf := make([]byte, 4<<10)
	for {
		n, err := peek(c.conn)
		if err == nil && n > len(buf) {
			buf = make([]byte, n)
		}
		var on int
		if err == nil {
			n, on, _, _, err = c.conn.ReadMsgUnix(buf, oob)
		}
		if err == nil && n == 0 {
			err = errors.New("the monitor has closed the connection")
		}
		if err != nil {
			c.fail(err)
			return
		}
		r := &wire.Reply{}
		fds := files(oob[:on])
		if err := json.Unmarshal(buf[:n], r); err != nil {
			closeFiles(fds)
			c.fail(fmt.Errorf("the monitor's message makes no sense: %w", err))
			return
		}
		c.take(r, fds)
	}
}

// peek waits for a message and tells its size, so that an idle connection holds no large buffer.
func peek(conn *net.UnixConn) (int, error) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var peekErr error
	err = rc.Read(func(fd uintptr) bool {
		n, _, peekErr = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		return peekErr != unix.EAGAIN && peekErr != unix.EINTR
	})
	if err == nil {
		err = peekErr
	}
	return n, err
}

func (c *client) take(r *wire.Reply, fds []*os.File) {
	if r.ID == 0 {
		closeFiles(fds)
		if r.Exit != nil {
			c.drop(r.Container)
			c.onExit(r.Container, r.Exit)
		}
		return
	}
	c.mu.Lock()
	w := c.waiting[r.ID]
	delete(c.waiting, r.ID)
	c.mu.Unlock()
	if w == nil {
		closeFiles(fds)
		return
	}
	w <- answer{r, fds}
}

// fail ends every call.
func (c *client) fail(err error) {
	c.mu.Lock()
	c.err = err
	for _, w := range c.waiting {
		close(w)
	}
	c.waiting = nil
	closing := c.closing
	c.mu.Unlock()
	_ = c.conn.Close()
	if !closing {
		c.onLost()
	}
}

// call sends a request and waits for the answer. When ctx ends first the monitor is told, and its answer is still waited
// for, briefly for it: what it had begun is gone then.
func (c *client) call(ctx context.Context, q wire.Request, fds ...*os.File) (*wire.Reply, error) {
	a, err := c.ask(ctx, q, fds...)
	if err != nil {
		return nil, err
	}
	closeFiles(a.fds)
	return a.Reply, nil
}

func (c *client) ask(ctx context.Context, q wire.Request, fds ...*os.File) (answer, error) {
	w := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return answer{}, fmt.Errorf("%s: %w", q.Op, errNoMonitor)
	}
	c.next++
	q.ID = c.next
	c.waiting[q.ID] = w
	c.mu.Unlock()
	if err := c.write(q, fds); err != nil {
		return answer{}, fmt.Errorf("%s: ask the pod's monitor: %w", q.Op, err)
	}
	canceled := ctx.Done()
	for {
		select {
		case a, ok := <-w:
			if !ok {
				return answer{}, fmt.Errorf("%s: the pod's monitor was lost while it worked on it", q.Op)
			}
			if a.Error != "" {
				closeFiles(a.fds)
				return answer{}, errors.New(a.Error)
			}
			return a, nil
		case <-canceled:
			canceled = nil
			_ = c.write(wire.Request{Op: wire.Cancel, Cancels: q.ID}, nil)
		}
	}
}

func (c *client) write(q wire.Request, fds []*os.File) error {
	data, err := json.Marshal(q)
	if err != nil {
		return err
	}
	var raw []int
	for _, f := range fds {
		raw = append(raw, int(f.Fd()))
	}
	var oob []byte
	if len(raw) > 0 {
		oob = unix.UnixRights(raw...)
	}
	c.send.Lock()
	defer c.send.Unlock()
	_, _, err = c.conn.WriteMsgUnix(data, oob, nil)
	return err
}

// hold keeps what a monitor that takes over will need of a container: a pidfd, with which the exit of a process can be
// asked for that is no child, and a terminal's master.
func (c *client) hold(ctr string, fds ...*os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[ctr] = append(c.held[ctr], fds...)
}

func (c *client) drop(ctr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	closeFiles(c.held[ctr])
	delete(c.held, ctr)
}

// end closes the connection without a cry for the monitor.
func (c *client) end() {
	c.mu.Lock()
	c.closing = true
	for ctr, fds := range c.held {
		closeFiles(fds)
		delete(c.held, ctr)
	}
	c.mu.Unlock()
	_ = c.conn.Close()
}

func files(oob []byte) []*os.File {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var all []*os.File
	for _, m := range msgs {
		fds, _ := syscall.ParseUnixRights(&m)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			all = append(all, os.NewFile(uintptr(fd), "from the monitor"))
		}
	}
	return all
}

func closeFiles(list []*os.File) {
	for _, f := range list {
		_ = f.Close()
	}
}

// pidfd opens a process so that its end can be asked for whoever is its parent.
func pidfd(pid int) *os.File {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}
