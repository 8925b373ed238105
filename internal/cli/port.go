package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

func portCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "port NAME [PORT[/PROTOCOL]]", Short: "List the ports of this machine that lead to a container or pod",
		Args:    takes(1, 2),
		Example: examples("berth port web", "berth port web 80/tcp"), ValidArgsFunction: a.completeFirst(targets),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(func(c *client) error { return printPorts(cmd, c, args) })
		},
	}
}

func printPorts(cmd *cobra.Command, c *client, args []string) error {
	n, err := c.survey(cmd.Context())
	if err != nil {
		return err
	}
	t, err := n.target(args[0])
	if err != nil {
		return err
	}
	pod := t.pod
	if pod == "" {
		pod = n.podOf(t.container).GetId()
	}
	resp, err := c.PodSandboxStatus(cmd.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
	if err != nil {
		return err
	}
	found := false
	for _, p := range podConfigOf(resp.GetInfo()).GetPortMappings() {
		inside := fmt.Sprintf("%d/%s", p.GetContainerPort(), strings.ToLower(p.GetProtocol().String()))
		if p.GetHostPort() == 0 || len(args) > 1 && args[1] != inside && args[1]+"/tcp" != inside {
			continue
		}
		address := p.GetHostIp()
		if address == "" {
			address = "0.0.0.0"
		}
		text := net.JoinHostPort(address, strconv.Itoa(int(p.GetHostPort())))
		if len(args) == 1 {
			text = inside + " -> " + text
		}
		found = true
		fmt.Fprintln(stdout(cmd), text)
	}
	if !found && len(args) > 1 {
		return fail.New(errdefs.ErrNotFound, "no port of this machine leads to port %s of %s", args[1], args[0])
	}
	return nil
}

// listened reports whether a program has the port. It asks the kernel, by taking the port for a moment.
func listened(p *runtimeapi.PortMapping) bool {
	address := net.JoinHostPort(cmp.Or(p.GetHostIp(), "0.0.0.0"), strconv.Itoa(int(p.GetHostPort())))
	var l io.Closer
	var err error
	switch p.GetProtocol() {
	case runtimeapi.Protocol_TCP:
		l, err = net.Listen("tcp", address)
	case runtimeapi.Protocol_UDP:
		l, err = net.ListenPacket("udp", address)
	default:
		return false
	}
	if err == nil {
		_ = l.Close()
	}
	return errors.Is(err, syscall.EADDRINUSE)
}
