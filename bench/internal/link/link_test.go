package link

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"berth/test/isolate"
)

// guest makes the test binary a program that runs isolated, for a link's interfaces have fixed names.
const guest = "LINK_TEST_GUEST"

func TestMain(m *testing.M) {
	if os.Getenv(guest) == "" {
		os.Exit(m.Run())
	}
	inside, err := isolate.Enter()
	if err == nil && inside {
		err = visit()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestALinkCarriesAndCounts(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), guest+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// visit sends through a link of every kind, twice each to see that a link that was closed leaves room for the next.
func visit() error {
	registry, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go answer(registry)
	for _, s := range []Shape{{}, {Rate: 800e6}, {Delay: time.Millisecond}, {PerConn: 800e6},
		{Rate: 800e6, Delay: time.Millisecond}} {
		for range 2 {
			if err := send(s, registry.Addr().String()); err != nil {
				return fmt.Errorf("%+v: %w", s, err)
			}
		}
	}
	return shape()
}

// shape asks the kernel what became of a rate.
func shape() error {
	const rate = 20e6
	if err := shapeRate("lo", rate); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	list, err := netlink.QdiscList(lo)
	if err != nil || len(list) != 1 {
		return fmt.Errorf("loopback has the disciplines %v: %w", list, err)
	}
	tbf, ok := list[0].(*netlink.Tbf)
	if !ok || tbf.Rate != rate/8 {
		return fmt.Errorf("loopback has the discipline %+v", list[0])
	}
	return nil
}

// size of an answer: more than any queue on the way holds.
const size = 24 << 20

func answer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			question := make([]byte, 4)
			if _, err := io.ReadFull(conn, question); err == nil && string(question) == "blob" {
				_, _ = conn.Write(make([]byte, size))
			}
		}()
	}
}

func send(s Shape, target string) error {
	l, err := Open(s, target)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	conn, err := net.Dial("tcp", l.Addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "blob"); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, conn)
	if err != nil || n != size {
		return fmt.Errorf("%d bytes arrived: %w", n, err)
	}
	if l.Carried() != size {
		return fmt.Errorf("%d bytes are counted", l.Carried())
	}
	return l.Close()
}
