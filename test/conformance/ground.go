package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/test/fixture"
	"berth/test/node"
)

// The node's name and address. Nobody else is in its network.
const (
	nodeName    = "node1"
	nodeAddress = "10.91.0.10"
	gateway     = "10.91.0.1"
)

// groupOf is the cgroup of a run, in which all of it is. In the run it is the root.
func groupOf(dir string) string { return "/bt-conformance-" + filepath.Base(dir) }

// Ground prepares what isolate.Run starts: a cgroup that looks like the root, a host name, shared memory and a /tmp
// of its own.
func Ground(dir string) error {
	if cgroup.Mode() == cgroup.V2 {
		return errors.New("the node of the conformance tests is made for cgroup v1, and this machine has v2")
	}
	if err := enterGroup(groupOf(dir), 0); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Sethostname([]byte(nodeName)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o777); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(tmp, 0o777|os.ModeSticky), keep(tmp), bind(tmp, "/tmp")); err != nil {
		return err
	}
	// The kubelet takes the interface of the first process for that of the node, though it has another itself.
	if err := connect(); err != nil {
		return err
	}
	return chatter()
}

// keep has what a run reads and writes and that lies below the machine's /tmp lie below tmp as well.
func keep(tmp string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	kept := []string{fixture.Repo(), filepath.Dir(ProgramsCache()), filepath.Dir(self), os.Getenv("BERTH_BIN")}
	for _, dir := range kept {
		name, err := filepath.Rel("/tmp", dir)
		if err != nil || !filepath.IsLocal(name) || name == "." {
			continue
		}
		to := filepath.Join(tmp, name)
		if err := errors.Join(os.MkdirAll(to, 0o755), bind(dir, to)); err != nil {
			return err
		}
	}
	return nil
}

// CleanUp removes the cgroup of a run that has ended.
func CleanUp(dir string) error { return cgroup.RemoveTree(groupOf(dir)) }

// enterGroup makes a cgroup in each hierarchy and moves a process there: this one if pid is 0.
func enterGroup(name string, pid int) error {
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err == nil && len(hierarchies) == 0 {
		err = errors.New("no cgroup hierarchy is mounted")
	}
	for _, procs := range hierarchies {
		top := filepath.Dir(procs)
		err = errors.Join(err, makeGroup(top, name),
			os.WriteFile(filepath.Join(top, name, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	}
	return err
}

// makeGroup makes a group in the hierarchy at top. One of processors and memory nodes is usable once it has some.
func makeGroup(top, name string) error {
	group := filepath.Join(top, name)
	if err := os.MkdirAll(group, 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(group, "cpuset.cpus")); err != nil {
		return nil
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(top, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(group, file), value, 0)
		}
		if err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(group, "cgroup.clone_children"), []byte("1"), 0)
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", from, to, err)
	}
	return nil
}

// furnish makes what a node has besides, in the daemon's mount and network namespaces: /sys with the cgroups of the
// run, folders on the disk below dir, names, an interface. With crun there is no cgroup2 hierarchy, beside which it
// does not run.
func furnish(dir, runtime string) error {
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := mountGroups(runtime != node.Crun); err != nil {
		return err
	}
	for name, target := range map[string]string{"kubelet": "/var/lib/kubelet", "log": "/var/log"} {
		from := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(from, 0o755), os.MkdirAll(target, 0o755), bind(from, target)); err != nil {
			return err
		}
	}
	files := names()
	if path, err := exec.LookPath("systemd-run"); err == nil {
		files[path] = "" // with it the suite takes systemd to be there
	}
	for target, text := range files {
		from := filepath.Join(dir, filepath.Base(target))
		if err := errors.Join(os.WriteFile(from, []byte(text), 0o644), bind(from, target)); err != nil {
			return err
		}
	}
	return connect()
}

// names are the files by which the node knows names.
func names() map[string]string {
	return map[string]string{
		"/etc/hosts": "127.0.0.1 localhost\n" + nodeAddress + " " + nodeName + "\n",
		// A name server that refuses at once: for one that is silent, the kubelet waits.
		"/etc/resolv.conf": "nameserver " + nodeAddress + "\noptions timeout:1 attempts:1\n",
	}
}

// mountGroups mounts the cgroup hierarchies as this process has them, at their usual places.
func mountGroups(unified bool) error {
	const root = "/sys/fs/cgroup/"
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", root, err)
	}
	f, err := os.Open("/proc/thread-self/cgroup")
	if err != nil {
		return err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		_, rest, _ := strings.Cut(lines.Text(), ":")
		controllers, _, _ := strings.Cut(rest, ":")
		dir, kind, options := controllers, "cgroup", controllers
		if name, named := strings.CutPrefix(controllers, "name="); named {
			dir, options = name, "none,"+controllers
		}
		if controllers == "" {
			if dir, kind = "unified", "cgroup2"; !unified {
				continue
			}
		}
		if err := os.Mkdir(root+dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(kind, root+dir, kind, 0, options); err != nil {
			return fmt.Errorf("mount %s%s: %w", root, dir, err)
		}
		for _, one := range strings.Split(dir, ",") {
			if one != dir {
				err = errors.Join(err, os.Symlink(dir, root+one))
			}
		}
	}
	return err
}

// The node's interface, and its other end, which leads nowhere.
const (
	interfaceName = "eth0"
	peerName      = "eth0-peer"
)

// connect makes the interface, with an address and the default route.
func connect() error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: interfaceName}, PeerName: peerName}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("make an interface: %w", err)
	}
	for _, name := range []string{link.Name, link.PeerName} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
	}
	ip := &net.IPNet{IP: net.ParseIP(nodeAddress), Mask: net.CIDRMask(24, 32)}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ip}); err != nil {
		return fmt.Errorf("give the interface an address: %w", err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)}); err != nil {
		return fmt.Errorf("make the default route: %w", err)
	}
	return nil
}

// chatter sends some megabytes over the interface in each direction: the specs of the kubelet's summary want a node
// that has seen traffic.
func chatter() error {
	for _, end := range []string{interfaceName, peerName} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
			unix.BindToDevice(fd, end),
		)
		everybody := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{255, 255, 255, 255}}
		for range 3000 {
			// What is lost, or finds no room for the moment, is made up for by the rest.
			if sent := unix.Sendto(fd, make([]byte, 1400), 0, everybody); errors.Is(sent, unix.ENOBUFS) {
				time.Sleep(time.Millisecond)
			}
		}
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("send over %s: %w", end, err)
		}
	}
	return nil
}

// leaveKubelet unmounts what a kubelet has mounted below its folder, and left there.
func leaveKubelet() error {
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for _, line := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], "/var/lib/kubelet/") {
			points = append(points, f[4])
		}
	}
	for i := len(points) - 1; i >= 0; i-- { // those on top of others come later
		err = errors.Join(err, unix.Unmount(points[i], unix.MNT_DETACH))
	}
	return err
}
