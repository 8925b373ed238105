package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"golang.org/x/sys/unix"

	"berth/internal/thread"
)

// restore gives the pod's interface the addresses again that its ADD gave it. A sandbox with a network stack of its own
// takes them from there, anybody with the right to may, and plugins find what they have to undo by them. The error is
// unix.ENODEV where the interface is gone.
func restore(netns string, on *attached) error {
	known := on.known()
	if known == nil {
		return nil
	}
	result, err := create.Create(on.Config.Version, known)
	if err != nil {
		return err
	}
	r, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	own := ownAddresses(r, on.IfName)
	return thread.Run(func() error {
		if err := enterPin(netns); err != nil {
			return err
		}
		link, err := linkIndex(on.IfName)
		if err != nil {
			return fmt.Errorf("find interface %s: %w", on.IfName, err)
		}
		var errs []error
		for _, a := range own {
			if err := addAddress(link, a); err != nil { // those of the other family may be taken
				errs = append(errs, fmt.Errorf("add address %v: %w", &a, err))
			}
		}
		return errors.Join(errs...)
	})
}

// ownAddresses are those of the pod's interface, with their prefixes.
func ownAddresses(r *types100.Result, ifname string) (own []net.IPNet) {
	for _, ip := range r.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) && r.Interfaces[*i].Sandbox != "" &&
			r.Interfaces[*i].Name == ifname {
			own = append(own, ip.Address)
		}
	}
	return own
}

// linkIndex finds an interface of the calling thread's network namespace by its name; unix.ENODEV where there is none.
// It asks for that one alone. net.InterfaceByName reads all that there are, of which a pod may make any number, and
// takes their names for the zones of the daemon's own IPv6 addresses.
func linkIndex(name string) (index uint32, err error) {
	b := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg, 64)
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(name)+1))
	b = append(binary.NativeEndian.AppendUint16(b, unix.IFLA_IFNAME), name...)
	b = append(b, make([]byte, aligned(len(name)+1)-len(name))...) // the name ends with a zero
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	link, err := askKernel(b, unix.RTM_NEWLINK)
	if err != nil {
		return 0, err
	}
	if len(link) < unix.SizeofIfInfomsg {
		return 0, unix.EBADMSG
	}
	return binary.NativeEndian.Uint32(link[4:]), nil
}

// addAddress adds an address to an interface of the calling thread's network namespace; nil where it has it.
func addAddress(link uint32, a net.IPNet) error {
	family, ip := byte(unix.AF_INET), a.IP.To4()
	if ip == nil {
		family, ip = unix.AF_INET6, a.IP.To16()
	}
	prefix, _ := a.Mask.Size()
	b := make([]byte, unix.NLMSG_HDRLEN, 96)
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_NEWADDR)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	b = append(b, family, byte(prefix), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE) // struct ifaddrmsg
	b = binary.NativeEndian.AppendUint32(b, link)
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(ip)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), ip...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	_, err := askKernel(b, unix.NLMSG_ERROR)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// askKernel sends one message, and returns what the kernel answers in a message of the kind wanted: unix.NLMSG_ERROR
// where only success is acknowledged. An error of the kernel is an error. The end of a long answer may be missing.
func askKernel(message []byte, wanted uint16) (body []byte, err error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer unix.Close(s)
	timeout := unix.NsecToTimeval(int64(countTimeout))
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, err
	}
	if err := unix.Sendto(s, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	answer := make([]byte, 1024)
	n, _, err := unix.Recvfrom(s, answer, 0)
	if err != nil {
		return nil, err
	}
	if n < unix.NLMSG_HDRLEN+4 {
		return nil, unix.EBADMSG
	}
	kind, body := binary.NativeEndian.Uint16(answer[4:]), answer[unix.NLMSG_HDRLEN:n]
	if kind == unix.NLMSG_ERROR {
		if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
			return nil, unix.Errno(-code)
		}
	}
	if kind != wanted {
		return nil, unix.EBADMSG
	}
	return body, nil
}
