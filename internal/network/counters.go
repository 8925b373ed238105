package network

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
	"berth/internal/thread"
)

// Counters are what an interface has received (Rx) and sent (Tx) since it was made.
type Counters struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// Traffic is what the interfaces of a pod have carried, that through which the pod is reached first. Which interfaces
// are told is said at withLink.
type Traffic struct {
	At         time.Time
	Interfaces []Counters
	Err        error // why there is nothing; unix.ENOENT where no namespace is pinned
}

// countTimeout bounds the kernel's answer for one namespace.
const countTimeout = 2 * time.Second

// Count reads the counters of the network namespaces that are pinned at the paths, in their order. No socket stays
// open: one that did would keep its namespace alive.
func Count(paths ...string) []Traffic {
	all := make([]Traffic, len(paths))
	if len(paths) == 0 {
		return all
	}
	_ = thread.Run(func() error {
		buf := make([]byte, 32<<10) // the most that the kernel puts into one part
		for i, path := range paths {
			all[i].At = time.Now()
			if all[i].Interfaces, all[i].Err = countIn(path, buf); all[i].Err != nil {
				all[i].Err = fmt.Errorf("count the traffic of network namespace %s: %w", path, all[i].Err)
			}
		}
		return nil
	})
	return all
}

// countIn moves the calling thread into a namespace for good.
func countIn(path string, buf []byte) ([]Counters, error) {
	if err := enterPin(path); err != nil {
		return nil, err
	}
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer unix.Close(s)
	timeout := unix.NsecToTimeval(int64(countTimeout))
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, err
	}
	if err := unix.Sendto(s, dumpLinks, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("ask for the interfaces: %w", err)
	}
	var list []Counters
	for done := false; !done && !full(list); {
		n, err := unix.Read(s, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the interfaces: %w", err)
		}
		if list, done, err = readLinks(list, buf[:n]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// dumpLinks asks for every interface: a netlink header and an empty ifinfomsg.
var dumpLinks = func() []byte {
	b := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	return b
}()

// readLinks adds the interfaces of one part of the kernel's answer. A dump that an interface interrupted by coming or
// going is good as it is: what it says of the others is right.
func readLinks(list []Counters, part []byte) (_ []Counters, done bool, err error) {
	for len(part) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(part))
		if size < unix.NLMSG_HDRLEN || size > len(part) {
			return nil, false, fmt.Errorf("read the interfaces: a message of %d bytes in %d", size, len(part))
		}
		body := part[unix.NLMSG_HDRLEN:size]
		switch binary.NativeEndian.Uint16(part[4:]) {
		case unix.NLMSG_DONE:
			return list, true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return nil, false, fmt.Errorf("read the interfaces: %w", unix.EBADMSG)
			}
			return nil, false, fmt.Errorf("read the interfaces: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
		case unix.RTM_NEWLINK:
			if c, ok := counters(body); ok {
				list = withLink(list, c)
			}
		}
		part = part[min(aligned(size), len(part)):]
	}
	return list, false, nil
}

// withLink adds an interface to those that are told of a pod, that of the pod's network first, which is always told.
// Left out are those that cAdvisor leaves out, what is more than limit.PodInterfaces, and a second one of the same
// name, since metrics are told apart by it: an interrupted dump may tell of one twice, and two names may be one when
// what is no UTF-8 of them is replaced.
func withLink(list []Counters, c Counters) []Counters {
	most := int(limit.PodInterfaces.Limit)
	switch {
	case slices.ContainsFunc(list, func(o Counters) bool { return o.Name == c.Name }):
		return list
	case c.Name == ifName:
		return slices.Insert(list[:min(len(list), most-1)], 0, c)
	case len(list) == most, passesOn(c.Name):
		return list
	}
	return append(list, c)
}

// full says that no further interface can become one of those that are told.
func full(list []Counters) bool {
	return len(list) == int(limit.PodInterfaces.Limit) && list[0].Name == ifName
}

// passesOn reports whether an interface is, by its name, one of those through which a pod passes the traffic of
// containers inside it on to its own interface. It would be counted up to three times, and each container inside would
// bring series of metrics with a name that does not come again. The names are those of cAdvisor.
func passesOn(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"lo", "veth", "docker", "nerdctl"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// counters reads one interface; not ok is lo.
func counters(body []byte) (c Counters, ok bool) {
	if len(body) < unix.SizeofIfInfomsg || binary.NativeEndian.Uint32(body[8:])&unix.IFF_LOOPBACK != 0 {
		return c, false
	}
	for body = body[unix.SizeofIfInfomsg:]; len(body) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(body))
		if size < unix.SizeofRtAttr || size > len(body) {
			break
		}
		value := body[unix.SizeofRtAttr:size]
		switch binary.NativeEndian.Uint16(body[2:]) {
		case unix.IFLA_IFNAME:
			// The kernel takes any bytes but a few for a name; what is told over CRI has to be UTF-8.
			c.Name = string(bytes.ToValidUTF8(bytes.TrimRight(value, "\x00"), []byte("?")))
		case unix.IFLA_STATS64: // struct rtnl_link_stats64 begins with these
			for i, to := range []*uint64{&c.RxPackets, &c.TxPackets, &c.RxBytes, &c.TxBytes, &c.RxErrors, &c.TxErrors,
				&c.RxDropped, &c.TxDropped} {
				if len(value) >= 8*(i+1) {
					*to = binary.NativeEndian.Uint64(value[8*i:])
				}
			}
		}
		body = body[min(aligned(size), len(body)):]
	}
	return c, c.Name != ""
}

// aligned is where what follows something of that size begins.
func aligned(size int) int { return (size + 3) &^ 3 }

// enterPin refuses the file that is left below a pin that is gone.
func enterPin(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.NSFS_MAGIC {
		return unix.ENOENT
	}
	return unix.Setns(fd, unix.CLONE_NEWNET)
}
