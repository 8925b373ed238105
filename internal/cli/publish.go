package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/sandbox"
)

// takenPort is a port of the machine that leads to a pod.
type takenPort struct {
	*runtimeapi.PortMapping
	pod string // its name
}

// takenPorts are those of the pods that are ready.
func takenPorts(ctx context.Context, c *client, n *node) (all []takenPort, err error) {
	for _, p := range n.pods {
		if p.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			continue
		}
		resp, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId(), Verbose: true})
		if isCode(err, codes.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, m := range podConfigOf(resp.GetInfo()).GetPortMappings() {
			if m.GetHostPort() != 0 {
				all = append(all, takenPort{m, p.GetMetadata().GetName()})
			}
		}
	}
	return all, nil
}

// needPorts refuses ports of this machine that lead to another pod already, or at which a program of this machine
// listens: CNI plugins take them all the same, and the one who had the port would be reached no more. What names no
// port of the machine is given a free one.
func needPorts(ctx context.Context, c *client, n *node, wanted []*runtimeapi.PortMapping) error {
	if len(wanted) == 0 {
		return nil
	}
	taken, err := takenPorts(ctx, c, n)
	if err != nil {
		return err
	}
	for i, w := range wanted {
		if w.GetHostPort() == 0 {
			continue
		}
		if slices.ContainsFunc(wanted[:i], func(o *runtimeapi.PortMapping) bool { return sandbox.SamePort(w, o) }) {
			return fail.New(errdefs.ErrInvalidArgument, "port %s of this machine is asked for twice", sandbox.PortText(w))
		}
		if i := slices.IndexFunc(taken, func(t takenPort) bool { return sandbox.SamePort(w, t.PortMapping) }); i >= 0 {
			return fail.New(errdefs.ErrFailedPrecondition, "port %s of this machine leads to pod %s already; berth rm -f %s "+
				"removes that", sandbox.PortText(w), taken[i].pod, taken[i].pod)
		}
		if listened(w) {
			return fail.New(errdefs.ErrFailedPrecondition, "a program of this machine listens at port %s already; ss -lntup "+
				"tells which", sandbox.PortText(w))
		}
	}
	for _, w := range wanted {
		taken = append(taken, takenPort{PortMapping: w})
	}
	for _, w := range wanted {
		if w.GetHostPort() != 0 {
			continue
		}
		if err := choosePort(w, taken); err != nil {
			return err
		}
	}
	return nil
}

// warnOfPorts says that published ports lead nowhere where no plugin of the daemon's network forwards them. They are
// not refused: a network may have another way.
func warnOfPorts(ctx context.Context, c *client, to io.Writer, ports []*runtimeapi.PortMapping) error {
	if len(ports) == 0 {
		return nil
	}
	status, err := c.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return err
	}
	var in struct {
		Name, File   string
		Capabilities []string
	}
	// A daemon of an earlier release says nothing, and where there is no network the pod cannot be made.
	if json.Unmarshal([]byte(status.GetInfo()["network"]), &in) != nil || in.Name == "" ||
		slices.Contains(in.Capabilities, "portMappings") {
		return nil
	}
	_, err = fmt.Fprintf(to, "berth: no plugin of the network %s (%s) forwards ports, so those that are published may "+
		"lead nowhere: add one with the capability portMappings to it, such as portmap\n", in.Name, in.File)
	return err
}

// portTries is how often the kernel is asked for a port that leads to no pod.
const portTries = 100

// choosePort gives a mapping a port of the machine at which nobody listens, and that is not taken.
func choosePort(m *runtimeapi.PortMapping, taken []takenPort) error {
	for range portTries {
		port, err := freePort(m)
		if err != nil {
			return fmt.Errorf("find a free port of this machine for port %d: %w", m.GetContainerPort(), err)
		}
		chosen := &runtimeapi.PortMapping{Protocol: m.Protocol, HostIp: m.HostIp, HostPort: port}
		if !slices.ContainsFunc(taken, func(t takenPort) bool { return sandbox.SamePort(chosen, t.PortMapping) }) {
			m.HostPort = port
			return nil
		}
	}
	return fail.New(errdefs.ErrFailedPrecondition, "no port of this machine is free for port %d: -p HOSTPORT:%d says "+
		"which", m.GetContainerPort(), m.GetContainerPort())
}

// freePort is one that the kernel gives to a program that does not ask for a certain one.
func freePort(m *runtimeapi.PortMapping) (int32, error) {
	address := net.JoinHostPort(cmp.Or(m.GetHostIp(), "0.0.0.0"), "0")
	if m.GetProtocol() == runtimeapi.Protocol_UDP {
		l, err := net.ListenPacket("udp", address)
		if err != nil {
			return 0, err
		}
		defer func() { _ = l.Close() }()
		return int32(l.LocalAddr().(*net.UDPAddr).Port), nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return int32(l.Addr().(*net.TCPAddr).Port), nil
}

// mostExposed is how many ports an image may have that are published with one flag.
const mostExposed = 1000

// exposedPorts are the ports that an image says it listens at, but for those that are published by name.
func exposedPorts(ctx context.Context, c *client, img string, but []*runtimeapi.PortMapping,
) (all []*runtimeapi.PortMapping, err error) {
	d, err := imageDetail(ctx, c, img)
	if err != nil {
		return nil, err
	}
	var config ocispec.Image
	if err := decodeConfig(d, &config); err != nil {
		return nil, err
	}
	if n := len(config.Config.ExposedPorts); n > mostExposed {
		return nil, fail.New(errdefs.ErrInvalidArgument, "-P: the image has %d ports, and %d can be published so", n,
			mostExposed)
	}
	for text := range config.Config.ExposedPorts {
		m, err := parsePort(text)
		if err != nil || m.HostPort != 0 || m.HostIp != "" {
			return nil, fail.New(errdefs.ErrInvalidArgument, "-P: the image has a port %q, which is none", text)
		}
		same := func(b *runtimeapi.PortMapping) bool {
			return b.ContainerPort == m.ContainerPort && b.Protocol == m.Protocol
		}
		if !slices.ContainsFunc(but, same) {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *runtimeapi.PortMapping) int {
		return cmp.Or(cmp.Compare(a.ContainerPort, b.ContainerPort), cmp.Compare(a.Protocol, b.Protocol))
	})
	return all, nil
}
