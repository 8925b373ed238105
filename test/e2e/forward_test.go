package e2e

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"berth/test/node"
)

// echo sends back what comes, until its end.
func echo(c *net.TCPConn) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

func TestPortForward(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		host := r.pod(hostNetwork)
		for name, x := range map[string]struct {
			p                *pod
			network, address string
			tunnelled        bool
		}{
			"IPv4":         {p, "tcp4", "127.0.0.1:0", false},
			"IPv6":         {p, "tcp6", "[::1]:0", false},
			"websocket":    {p, "tcp", ":0", true},
			"host network": {host, "tcp4", "127.0.0.1:0", false},
		} {
			r.sub(name, func(r rig) {
				p := x.p.on(r)
				// The server answers only once the client has said all, which takes both ends of the stream.
				f := p.forward(p.listen(x.network, x.address, func(c *net.TCPConn) {
					said, _ := io.ReadAll(c)
					_, _ = c.Write(append([]byte("heard "), said...))
					_ = c.Close()
				}), x.tunnelled)
				for range 3 {
					c := f.dial()
					said := strings.Repeat("0123456789", 30000)
					_, err := c.Write([]byte(said))
					r.ok(err)
					r.ok(c.CloseWrite())
					got, err := io.ReadAll(c)
					if err != nil || string(got) != "heard "+said {
						r.Errorf("%v: %d bytes", err, len(got))
					}
					_ = c.Close()
				}
				r.wantText("errors", f.errs.String(), "")
			})
		}
	})
}

// TestPortForwardWhereNobodyListens says so, at the stream.
func TestPortForwardWhereNobodyListens(t *testing.T) {
	each(t, func(r rig) {
		f := r.pod().forward(4321, false)
		c := f.dial()
		if got, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) || len(got) > 0 {
			r.Errorf("%q, %v", got, err)
		}
		// Clients print the text of the error stream and end.
		select {
		case err := <-f.ended:
			if err == nil || !strings.Contains(err.Error(), "lost connection to pod") {
				r.Errorf("the client ends with %v", err)
			}
		case <-time.After(time.Minute):
			r.Error("the client was not told")
		}
	})
}

// TestResetsSurvive has one side cut the connection: the other one sees it, and what is forwarded beside it goes on.
func TestResetsSurvive(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		ends := make(chan error, 1)
		port := p.listen("tcp", ":0", func(c *net.TCPConn) {
			defer c.Close()
			first := make([]byte, 1)
			_, err := io.ReadFull(c, first)
			switch {
			case err != nil:
			case first[0] == 'r': // reset it
				_ = c.SetLinger(0)
			case first[0] == 'w': // write until it is cut
				for err == nil {
					_, err = c.Write(make([]byte, 4096))
				}
				ends <- err
			default:
				_, _ = c.Write(first)
				echo(c)
			}
		})
		f := p.forward(port, false)
		beside := f.dial()
		works := func() {
			r.Helper()
			_, err := beside.Write([]byte("e"))
			r.ok(err)
			_, err = io.ReadFull(beside, make([]byte, 1))
			r.ok(err)
		}
		works()
		c := f.dial()
		_, err := c.Write([]byte("r"))
		r.ok(err)
		if n, err := c.Read(make([]byte, 1)); err == nil {
			r.Errorf("%d bytes came from a server that cut the connection", n)
		}
		works()
		// kubectl's client resets no stream that the server could see it of.
		data := p.on(r).streamTo(port)
		_, err = data.Write([]byte("w"))
		r.ok(err)
		_, err = io.ReadFull(data, make([]byte, 100))
		r.ok(err)
		r.ok(data.Reset())
		select {
		case err := <-ends:
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				r.Errorf("the server sees %v", err)
			}
		case <-time.After(time.Minute):
			r.Error("the server was not told that the client has gone")
		}
		works()
		r.wantText("what the client says of errors in the pod", strings.Join(grep(f.errs.String(), "error forwarding"), "\n"),
			"")
	})
}

func grep(text, word string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestThousandForwardedConnections leaves nothing open, in the daemon and in the pod.
func TestThousandForwardedConnections(t *testing.T) {
	t.Parallel()
	r := ownNode(t, node.Options{})
	p := r.pod()
	var open atomic.Int64
	port := p.listen("tcp", ":0", func(c *net.TCPConn) {
		open.Add(1)
		defer open.Add(-1)
		echo(c)
	})
	before := r.descriptors()
	f := p.forward(port, false)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for j := range 50 {
				c, err := net.Dial("tcp", f.address)
				if err != nil {
					r.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
				_, _ = c.Write([]byte("hello"))
				if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
					r.Errorf("connection %d of %d: %v", j, i, err)
				}
				if j%3 == 0 {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				_ = c.Close()
			}
		})
	}
	all.Wait()
	r.eventually("the pod's ends are closed", func() bool { return open.Load() == 0 })
	f.stop()
	<-f.ended
	r.eventually("the daemon has closed all", func() bool { return r.descriptors() <= before })
	// A client that vanishes with connections open closes them, too.
	f = p.forward(port, false)
	for range 50 {
		c := f.dial()
		_, _ = c.Write([]byte("x"))
		_, err := io.ReadFull(c, make([]byte, 1))
		r.ok(err)
	}
	f.cut()
	r.eventually("all is closed", func() bool { return open.Load() == 0 && r.descriptors() <= before })
}

// TestUploadsThatAreRefused has a server in a pod answer and close before it has read what a client uploads, or reset
// the connection: what else the client forwards goes on.
func TestUploadsThatAreRefused(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		port := p.listen("tcp", ":0", func(c *net.TCPConn) {
			defer c.Close()
			first := make([]byte, 1)
			if _, err := io.ReadFull(c, first); err != nil {
				return
			}
			_, _ = c.Write(first)
			switch first[0] {
			case 'r':
				_ = c.SetLinger(0)
			case 'e':
				echo(c)
			}
		})
		f := p.forward(port, false)
		for _, how := range "crcrcr" {
			c := f.dial()
			go func() {
				for _, err := c.Write(bytes.Repeat([]byte{byte(how)}, 64<<10)); err == nil; {
					_, err = c.Write(make([]byte, 64<<10))
				}
			}()
			_, _ = io.ReadFull(c, make([]byte, 1)) // the answer may be lost with a reset
			time.Sleep(50 * time.Millisecond)
			r.ok(c.Close())
		}
		for range 10 {
			c := f.dial()
			_, err := c.Write([]byte("e"))
			r.ok(err)
			_, err = io.ReadFull(c, make([]byte, 1))
			r.ok(err)
			r.ok(c.Close())
		}
	})
}
