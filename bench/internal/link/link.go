// Package link puts a slow link between the runtimes and a registry: a pair of virtual interfaces, whose far end is in
// a network namespace of its own and sends at a chosen rate. What else makes a link slow, delay and a limit for each
// connection, is added by the program that forwards to the registry, for kernels have not always the means.
package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Shape is what the link does to what comes from the registry. A zero field changes nothing.
type Shape struct {
	Rate int64 // bits a second of the interface, with all headers
	// Delay is added to each direction of an open connection. It makes questions and answers slower, and leaves TCP's own
	// windows as they are.
	Delay   time.Duration
	PerConn int64 // bits a second of each connection
}

// Link is a way to a registry.
type Link struct {
	Addr string // where the registry answers, host:port

	shape    Shape
	target   string
	listener net.Listener
	near     netlink.Link
	carried  atomic.Int64
	ctx      context.Context // of all connections
	end      context.CancelFunc
}

const (
	nearName, farName = "bnlink0", "bnlink1"
	nearAddr, farAddr = "10.249.0.1/30", "10.249.0.2/30"
	farIP             = "10.249.0.2"
)

// Open makes the link to a registry at the address target in this namespace. There is one link at a time.
func Open(shape Shape, target string) (*Link, error) {
	l := &Link{shape: shape, target: target}
	l.ctx, l.end = context.WithCancel(context.Background())
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("make a slow link: %w", err), l.Close())
	}
	l.Addr = l.listener.Addr().String()
	go l.serve()
	if err := l.try(); err != nil {
		return nil, errors.Join(fmt.Errorf("try the slow link: %w", err), l.Close())
	}
	return l, nil
}

// try connects once: the first packet over a new interface may get lost, and would be sent again only after a second.
func (l *Link) try() error {
	conn, err := net.DialTimeout("tcp", l.Addr, 10*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (l *Link) build() error {
	pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: farName}
	pair.Name = nearName
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	var err error
	if l.near, err = netlink.LinkByName(nearName); err != nil {
		return err
	}
	if err := bringUp(nearName, nearAddr); err != nil {
		return err
	}
	done := make(chan error)
	go func() { done <- l.farSide() }()
	return <-done
}

// farSide makes a namespace and listens in it. Its thread ends with it, so the namespace lives as long as the listener.
func (l *Link) farSide() error {
	runtime.LockOSThread() // and never unlocked
	far, err := netlink.LinkByName(farName)
	if err != nil {
		return err
	}
	home, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }()
	if err := home.LinkSetNsFd(far, int(here.Fd())); err != nil {
		return fmt.Errorf("move %s: %w", farName, err)
	}
	if err := bringUp(farName, farAddr); err != nil {
		return err
	}
	if l.shape.Rate > 0 {
		if err := shapeRate(farName, l.shape.Rate); err != nil {
			return err
		}
	}
	l.listener, err = net.Listen("tcp", net.JoinHostPort(farIP, "0"))
	return err
}

func bringUp(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("give %s an address: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}

// burst is what may leave at once: more than the largest packet before it is cut up.
const burst = 128 << 10

func shapeRate(name string, bits int64) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	bytes := uint64(bits) / 8
	err = netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
			Parent: netlink.HANDLE_ROOT},
		Rate: bytes, Limit: 4 << 20, Buffer: uint32(netlink.Xmittime(bytes, burst)),
	})
	if err != nil {
		return fmt.Errorf("shape %s to %d bit/s (the kernel needs sch_tbf): %w", name, bits, err)
	}
	return nil
}

// Carried is the bytes that were sent towards the runtimes so far, without TCP's and IP's headers.
func (l *Link) Carried() int64 { return l.carried.Load() }

// Close takes the link down. Connections over it break.
func (l *Link) Close() error {
	l.end()
	var errs []error
	// The interface goes first: without listener and connections the far namespace ends, and with it, some time later, the
	// interface.
	if l.near != nil {
		errs = append(errs, netlink.LinkDel(l.near))
	}
	if l.listener != nil {
		errs = append(errs, l.listener.Close())
	}
	return errors.Join(errs...)
}

func (l *Link) serve() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.forward(conn)
	}
}

func (l *Link) forward(client net.Conn) {
	defer func() { _ = client.Close() }()
	defer context.AfterFunc(l.ctx, func() { _ = client.Close() })()
	registry, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer func() { _ = registry.Close() }()
	defer context.AfterFunc(l.ctx, func() { _ = registry.Close() })()
	go func() {
		_ = l.relay(registry, client, 0, nil)
		_ = registry.(*net.TCPConn).CloseWrite()
	}()
	_ = l.relay(client, registry, l.shape.PerConn, &l.carried)
}

// chunk is what arrived at once, and when it may leave.
type chunk struct {
	data []byte
	due  time.Time
}

// slack is how much a connection may catch up with, of the time that this program or its client kept it waiting.
const slack = 250 * time.Millisecond

// relay copies with the delay of the link, at most at a rate, and counts. What is on its way fits the queue: more only
// holds back the sender.
func (l *Link) relay(to io.Writer, from io.Reader, bits int64, count *atomic.Int64) error {
	queue := make(chan chunk, 256)
	go func() {
		defer close(queue)
		for {
			buf := make([]byte, 64<<10)
			n, err := from.Read(buf)
			if n > 0 {
				queue <- chunk{buf[:n], time.Now().Add(l.shape.Delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	defer func() {
		go func() {
			for range queue { // lets the reader end, when its connection is closed
			}
		}()
	}()
	free := time.Now() // when the next may leave
	for c := range queue {
		time.Sleep(time.Until(c.due))
		if bits > 0 {
			free = later(free, later(c.due, time.Now().Add(-slack)))
			time.Sleep(time.Until(free))
			free = free.Add(time.Duration(int64(len(c.data)) * 8 * int64(time.Second) / bits))
		}
		if _, err := to.Write(c.data); err != nil {
			return err
		}
		if count != nil {
			count.Add(int64(len(c.data)))
		}
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
