package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"berth/internal/admin"
)

func (a *app) forwardCommand() *cobra.Command {
	address := "127.0.0.1"
	cmd := &cobra.Command{
		Use: "port-forward [flags] POD [LOCAL:]PORT...", Short: "Forward local ports to a pod",
		DisableFlagsInUseLine: true,
		Long: "Listen on local ports and forward connections to ports of the pod, on its loopback interface, " +
			"until interrupted. Without LOCAL the local port has the same number; 0 is any free port.",
		Example: examples("berth port-forward web 8080:80", "berth port-forward web :80"),
		Args:    atLeast(2), ValidArgsFunction: a.completeFirst(pods),
	}
	cmd.Flags().StringVar(&address, "address", address, "listen on this `address`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error { return c.forward(cmd, args[0], address, args[1:]) })
	}
	return cmd
}

// forwarded is a port of the pod, and the listener for it.
type forwarded struct {
	net.Listener
	port uint16
}

func (c *client) forward(cmd *cobra.Command, word, address string, ports []string) error {
	ctx := cmd.Context()
	n, err := c.survey(ctx)
	if err != nil {
		return err
	}
	id, err := pick("pod", word, n.podSubjects())
	if err != nil {
		return err
	}
	var all []forwarded
	defer func() {
		for _, f := range all {
			_ = f.Close()
		}
	}()
	for _, p := range ports {
		f, err := listenAt(address, p)
		if err != nil {
			return err
		}
		all = append(all, f)
		if _, err := fmt.Fprintf(stdout(cmd), "%s is port %d of pod %s\n", f.Addr(), f.port, short(id)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := server{c.node, stderr(cmd), id, cancel}
	var serving sync.WaitGroup
	for _, f := range all {
		serving.Go(func() { s.serve(ctx, f) })
	}
	<-ctx.Done()
	for _, f := range all {
		_ = f.Close()
	}
	serving.Wait()
	if cmd.Context().Err() != nil {
		return nil // interrupted, which is how this ends
	}
	return context.Cause(ctx)
}

// listenAt listens for one LOCAL:PORT.
func listenAt(address, ports string) (forwarded, error) {
	local, remote, two := strings.Cut(ports, ":")
	if !two {
		remote = local
	}
	if local == "" {
		local = "0"
	}
	port, err := strconv.ParseUint(remote, 10, 16)
	if _, err2 := strconv.ParseUint(local, 10, 16); err != nil || err2 != nil || port == 0 {
		return forwarded{}, fmt.Errorf("%s: want PORT or LOCAL:PORT, numbers up to 65535", ports)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(address, local))
	return forwarded{l, uint16(port)}, err
}

// server serves the ports of one pod.
type server struct {
	node *admin.Client
	errs io.Writer
	pod  string
	end  context.CancelCauseFunc // ends all, for a reason
}

// mostPause is how long one that could not accept a connection waits at most before it tries again.
const mostPause = time.Second

// serve connects whoever comes, until the listener is closed, and returns when all who came have been answered. What
// keeps it from accepting, such as too many open files, it says once, and goes on when it can.
func (s server) serve(ctx context.Context, f forwarded) {
	var connected sync.WaitGroup
	defer connected.Wait()
	var pause time.Duration
	for {
		conn, err := f.Accept()
		if err == nil {
			pause = 0
			connected.Go(func() { s.connect(ctx, f.port, conn.(*net.TCPConn)) })
			continue
		}
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		if pause == 0 {
			fmt.Fprintf(s.errs, "berth: %v; connections to it wait until there is room\n", err)
		}
		pause = min(max(2*pause, 10*time.Millisecond), mostPause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// connect connects one client to the pod. A pod that is gone never comes back: then all ends. Why a client was not
// served is said even when all ends meanwhile, unless that is the reason.
func (s server) connect(ctx context.Context, port uint16, conn *net.TCPConn) {
	defer context.AfterFunc(ctx, func() { // a client that does not read does not keep this from ending
		_ = conn.SetLinger(0) // it is cut: the client is not to take that for the end of what it gets
		_ = conn.Close()
	})()
	err := s.node.PortForward(ctx, &admin.PortForwardRequest{Pod: s.pod, Port: port}, conn)
	switch {
	case err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled) || isCode(err, codes.Canceled):
	case isCode(err, codes.NotFound):
		s.end(err)
	default:
		fmt.Fprintf(s.errs, "berth: %v\n", err)
	}
}
