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
// takes them from there, anybody with the right to may, and plugins find what they have to undo by them. An interface
// that is gone needs none.
func restore(netns string, on *attached) error {
	if on.Result == nil {
		return nil
	}
	result, err := create.Create(on.Config.Version, on.Result)
	if err != nil {
		return err
	}
	r, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	own := ownAddresses(r, on.IfName)
	if len(own) == 0 {
		return nil
	}
	return thread.Run(func() error {
		if err := enterPin(netns); err != nil {
			return err
		}
		link, err := net.InterfaceByName(on.IfName)
		if err != nil {
			return nil // it is gone
		}
		for _, a := range own {
			if err := addAddress(link.Index, a); err != nil {
				return fmt.Errorf("add address %v: %w", &a, err)
			}
		}
		return nil
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

// addAddress adds an address to an interface of the calling thread's network namespace; nil where it has it.
func addAddress(link int, a net.IPNet) error {
	family, ip := byte(unix.AF_INET), a.IP.To4()
	if ip == nil {
		family, ip = unix.AF_INET6, a.IP.To16()
	}
	prefix, _ := a.Mask.Size()
	b := make([]byte, unix.NLMSG_HDRLEN, 96)
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_NEWADDR)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	b = append(b, family, byte(prefix), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE) // struct ifaddrmsg
	b = binary.NativeEndian.AppendUint32(b, uint32(link))
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(ip)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), ip...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	err := tellKernel(b)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// tellKernel sends one message that the kernel acknowledges.
func tellKernel(message []byte) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	timeout := unix.NsecToTimeval(int64(countTimeout))
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return err
	}
	if err := unix.Sendto(s, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 1024)
	n, _, err := unix.Recvfrom(s, answer, 0)
	switch {
	case err != nil:
		return err
	case n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR:
		return unix.EBADMSG
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
