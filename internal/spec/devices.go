package spec

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
)

// ownDev is what a container has of its own under /dev, whatever the host has there.
var ownDev = []string{"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/console", "/dev/ptmx", "/dev/fd"}

// devices lists what the container may open. The device cgroup starts by denying all; runtimes allow the usual few
// (null, zero, full, random, urandom, tty, ptmx, pts) by themselves.
func (b *build) devices() error {
	allHost := b.privileged && !b.Handler.PrivilegedWithoutHostDevices
	b.out.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: allHost, Access: "rwm"}}
	if allHost {
		// The kernel adds devices while the daemon runs (disks, GPUs), so they are looked up for each container.
		found, err := b.lookUpDevices("/dev")
		if err != nil {
			return fmt.Errorf("devices of the host, for a privileged container: %w", err)
		}
		for _, d := range found {
			if !covers(ownDev, d.Path) {
				b.putDevice(d)
			}
		}
	}
	if b.Container.GetTty() && b.seesNodesDev() && !allHost {
		b.allow("c", 5, 1, "rw") // runc opens what is at /dev/console before it mounts the terminal there
	}
	given := int64(0)
	for _, d := range b.Container.GetDevices() {
		n, err := b.requestDevice(d, allHost)
		if given += n; err == nil {
			err = cmp.Or(limit.ContainerDevices.Check(given), b.ctx.Err())
		}
		if err != nil {
			return fmt.Errorf("device %s: %w", d.GetHostPath(), err)
		}
	}
	return nil
}

// allow adds a rule to the device cgroup.
func (b *build) allow(kind string, major, minor int64, access string) {
	r := b.out.Linux.Resources
	r.Devices = append(r.Devices,
		specs.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &major, Minor: &minor, Access: access})
}

// seesNodesDev reports whether a request mounts the node's /dev in the place of the container's.
func (b *build) seesNodesDev() bool {
	return slices.ContainsFunc(b.Mounts, func(m ResolvedMount) bool {
		return m.Source == "/dev" && path.Clean(m.Mount.GetContainerPath()) == "/dev"
	})
}

func covers(dirs []string, p string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return p == d || strings.HasPrefix(p, d+"/") })
}

// putDevice replaces what stands at the same path.
func (b *build) putDevice(d specs.LinuxDevice) {
	list := &b.out.Linux.Devices
	if i, ok := b.deviceAt[d.Path]; ok {
		(*list)[i] = d
		return
	}
	if b.deviceAt == nil {
		b.deviceAt = map[string]int{}
	}
	b.deviceAt[d.Path] = len(*list)
	*list = append(*list, d)
}

// requestDevice adds a device of the request, or all that are below a directory, and says how many these are.
func (b *build) requestDevice(want *runtimeapi.Device, allAllowed bool) (int64, error) {
	access, err := deviceAccess(want.GetPermissions())
	if err != nil {
		return 0, err
	}
	found, err := b.lookUpDevices(want.GetHostPath())
	if err != nil {
		return 0, err
	}
	for _, d := range found {
		d.Path = inContainer(d.Path, want)
		b.giveDevice(&d)
		b.putDevice(d)
		if !allAllowed {
			b.allow(d.Type, d.Major, d.Minor, access)
		}
	}
	return int64(len(found)), nil
}

// lookUpDevices walks each directory once, however often a request names it.
func (b *build) lookUpDevices(hostPath string) ([]specs.LinuxDevice, error) {
	if b.StatDevice == nil {
		return nil, errors.New("no lookup of host devices was given")
	}
	key := path.Clean(hostPath)
	if found, ok := b.found[key]; ok {
		return found, nil
	}
	found, err := b.StatDevice(b.ctx, key)
	if err != nil {
		return nil, err
	}
	if b.found == nil {
		b.found = map[string][]specs.LinuxDevice{}
	}
	b.found[key] = found
	return found, nil
}

// giveDevice makes the user and group of the security context the owner of a device of the request, where the handler
// says so. The ids are those of the container: a runtime changes the owner of a node that it makes inside the pod's
// user namespace, too. 0 leaves the host's owner, as containerd does.
func (b *build) giveDevice(d *specs.LinuxDevice) {
	if !b.Handler.DeviceOwnershipFromSecurityContext {
		return
	}
	for _, x := range []struct {
		want *runtimeapi.Int64Value
		id   **uint32
	}{{b.security.GetRunAsUser(), &d.UID}, {b.security.GetRunAsGroup(), &d.GID}} {
		if v := x.want.GetValue(); v > 0 && validID(v) {
			id := uint32(v)
			*x.id = &id
		}
	}
}

// inContainer maps a path at or below the host path to the container path.
func inContainer(found string, want *runtimeapi.Device) string {
	dst := want.GetContainerPath()
	if dst == "" {
		dst = want.GetHostPath()
	}
	rest, below := strings.CutPrefix(found, path.Clean(want.GetHostPath())+"/")
	if !below {
		rest = ""
	}
	return path.Join("/", dst, rest)
}

func deviceAccess(p string) (string, error) {
	if p == "" {
		return "rwm", nil
	}
	for i, c := range p {
		if !strings.ContainsRune("rwm", c) || strings.ContainsRune(p[:i], c) {
			return "", fmt.Errorf("permissions %q: only r, w and m, each once", p)
		}
	}
	return p, nil
}
