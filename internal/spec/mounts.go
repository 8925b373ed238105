package spec

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mountOptions is what a request may add to a bind mount. Nothing here can widen what the mount is.
var mountOptions = []string{
	"nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime", "strictatime", "nosymfollow",
}

// mounts puts the image's volumes first, then the base, and then the pod's files and the request's mounts, the shallow
// before the deep, so that no mount hides another. A mount of the request takes the place of the pod's or the base's at
// the same path, and of a volume at or below it. The volumes come before all else, as the parts of the root that they
// are: an image's links may lead from where the request mounts something to a volume, which would hide the mount then,
// or be found through it.
func (b *build) mounts() error {
	var asked []specs.Mount
	for _, m := range b.Mounts {
		mount, err := b.requestMount(m)
		if err != nil {
			return fmt.Errorf("mount %s at %s: %w", mountSource(m), m.Mount.GetContainerPath(), err)
		}
		asked = append(asked, mount)
	}
	memory, err := tmpfs(b.Container)
	if err != nil {
		return err
	}
	asked = append(asked, memory...)
	handlers := b.baseOwnMounts()
	volumes := b.volumeMounts(targetsOf(slices.Concat(handlers, asked)))
	at := targetsOf(asked)
	pods := slices.DeleteFunc(b.podMounts(), func(m specs.Mount) bool { return at[m.Destination] })
	over := slices.Concat(pods, asked)
	at = targetsOf(over)
	handlers = slices.DeleteFunc(handlers, func(m specs.Mount) bool { return at[m.Destination] })
	over = append(over, handlers...)
	slices.SortStableFunc(over, func(x, y specs.Mount) int {
		return cmp.Compare(depth(x.Destination), depth(y.Destination))
	})
	at = targetsOf(asked)
	base := slices.DeleteFunc(b.baseMounts(), func(m specs.Mount) bool { return at.cover(m.Destination) })
	b.out.Mounts = slices.Concat(volumes, base, over)
	return CheckPaths(b.out)
}

// VolumesFirst puts the image's volumes before all other mounts again, as Build has them: what adds mounts for CDI and
// NRI sorts all by their depth. A volume at or below an added mount is left out.
func VolumesFirst(s *specs.Spec, volumes []Volume) {
	if len(volumes) == 0 {
		return
	}
	declared := map[Volume]bool{}
	for _, v := range volumes {
		declared[v] = true
	}
	var first, others []specs.Mount
	for _, m := range s.Mounts {
		if declared[Volume{Path: m.Destination, Source: m.Source}] {
			first = append(first, m)
		} else {
			others = append(others, m)
		}
	}
	taken := targetsOf(others)
	first = slices.DeleteFunc(first, func(m specs.Mount) bool { return taken.cover(m.Destination) })
	s.Mounts = append(first, others...)
}

// CheckPaths refuses a spec with a mount whose paths are not UTF-8. A runtime is told them in JSON, which would have
// other characters in their place: of a path in an image that is a path which the image has chosen, and may be a link
// to any directory of the host. It refuses NUL bytes, too, which some runtimes take for the end of a path.
func CheckPaths(s *specs.Spec) error {
	for _, m := range s.Mounts {
		if !utf8.ValidString(m.Source) || !utf8.ValidString(m.Destination) {
			return fmt.Errorf("mount of %q at %q: a path that is not UTF-8 cannot be told to a runtime", m.Source, m.Destination)
		}
		if strings.ContainsRune(m.Source, 0) || strings.ContainsRune(m.Destination, 0) {
			return fmt.Errorf("mount of %q at %q: a path contains a NUL byte", m.Source, m.Destination)
		}
	}
	return nil
}

func mountSource(m ResolvedMount) string {
	if image := m.Mount.GetImage().GetImage(); image != "" {
		return "image " + image
	}
	return m.Mount.GetHostPath()
}

func depth(p string) int {
	if p == "/" {
		return 0
	}
	return strings.Count(p, "/")
}

// targets are the places of mounts in a container.
type targets map[string]bool

func targetsOf(mounts []specs.Mount) targets {
	t := make(targets, len(mounts))
	for _, m := range mounts {
		t[m.Destination] = true
	}
	return t
}

// cover says that one of the mounts is at dst or above it, so a base mount there would be hidden at once. No mount is
// at the root.
func (t targets) cover(dst string) bool {
	for {
		if t[dst] {
			return true
		}
		i := strings.LastIndexByte(dst, '/')
		if i <= 0 {
			return false
		}
		dst = dst[:i]
	}
}

func (b *build) baseMounts() []specs.Mount {
	pts := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if b.hasGroup(ttyGroup) {
		pts = append(pts, fmt.Sprintf("gid=%d", ttyGroup))
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: pts},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		b.sysfs(),
		b.cgroupfs(),
	}
}

// ttyGroup is the group of terminals.
const ttyGroup = 5

// hasGroup reports whether there is this group in the pod's user namespace.
func (b *build) hasGroup(gid uint32) bool {
	if b.Paths.UserNS == "" {
		return true
	}
	_, _, ok := IDs(b.Pod.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()).Host(0, gid)
	return ok
}

// sysfs shows the devices of a network namespace, so a user namespace that does not own it may only bind the host's.
func (b *build) sysfs() specs.Mount {
	if b.Paths.UserNS != "" && b.Paths.NetNS == "" {
		return specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys",
			Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "rro"}}
	}
	return specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs",
		Options: []string{"nosuid", "noexec", "nodev", b.kernelAccess()}}
}

func (b *build) cgroupfs() specs.Mount {
	if b.writableCgroup() && b.hasNamespace(specs.CgroupNamespace) {
		return cgroupMount(false, "rw") // the namespace shows the container its own cgroup and those below it
	}
	return cgroupMount(false, b.kernelAccess())
}

func (b *build) kernelAccess() string {
	if b.privileged {
		return "rw"
	}
	return "ro"
}

func (b *build) podMounts() []specs.Mount {
	access := "rw"
	if b.security.GetReadonlyRootfs() {
		access = "ro"
	}
	var out []specs.Mount
	add := func(dst, src, access string) {
		if src != "" {
			out = append(out, specs.Mount{Destination: dst, Type: "bind", Source: src,
				Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", access}})
		}
	}
	add("/dev/shm", b.Paths.Shm, "rw")
	add("/etc/hostname", b.Paths.Hostname, access)
	add("/etc/hosts", b.Paths.Hosts, access)
	add("/etc/resolv.conf", b.Paths.ResolvConf, access)
	return out
}

// volumeMounts has the image's volumes stay writable where the root is read-only: each is a mount of its directory in
// the same root, and so has the root's content, room and life. One that another mount covers is left out.
func (b *build) volumeMounts(taken targets) (all []specs.Mount) {
	if !b.security.GetReadonlyRootfs() {
		return nil
	}
	for _, v := range b.Volumes {
		if !taken.cover(v.Path) {
			taken[v.Path] = true
			all = append(all,
				specs.Mount{Destination: v.Path, Type: "bind", Source: v.Source, Options: []string{"bind", "rprivate", "rw"}})
		}
	}
	return all
}

func (b *build) requestMount(m ResolvedMount) (specs.Mount, error) {
	req := m.Mount
	if req.GetContainerPath() == "" {
		return specs.Mount{}, fmt.Errorf("no path in the container")
	}
	dst := path.Join("/", req.GetContainerPath())
	if dst == "/" {
		return specs.Mount{}, fmt.Errorf("a mount cannot take the place of the root")
	}
	if m.Source == "" {
		return specs.Mount{}, fmt.Errorf("its source was not resolved")
	}
	propagation, err := b.propagation(req.GetPropagation())
	if err != nil {
		return specs.Mount{}, err
	}
	access, err := b.mountAccess(req)
	if err != nil {
		return specs.Mount{}, err
	}
	if m.NeedsStaging() && !m.Staged {
		return specs.Mount{}, errors.New("it is to be read-only with all below it, or to have its ids mapped, and was " +
			"not staged")
	}
	opts := []string{"rbind", propagation, access}
	for _, o := range req.GetMountOptions() {
		if !slices.Contains(mountOptions, o) {
			return specs.Mount{}, fmt.Errorf("mount option %q: only %s can be asked for", o, strings.Join(mountOptions, ", "))
		}
		opts = append(opts, o)
	}
	strict := m.Strict
	if req.GetImage().GetImage() != "" {
		// The image's maker is trusted with files only: its set-user-id programs and device nodes have no effect.
		strict = slices.Concat(strict, []string{"nosuid", "nodev"})
	}
	for _, o := range strict {
		if !slices.Contains(opts, o) {
			opts = append(opts, o)
		}
	}
	return specs.Mount{Destination: dst, Type: "bind", Source: m.Source, Options: opts}, nil
}

// NeedsStaging reports whether the mount asks for what an OCI runtime is not asked for: that all below it is read-only,
// and a mapping of its ids. So the source is to be a mount that has it.
func (m ResolvedMount) NeedsStaging() bool {
	return m.Mount.GetRecursiveReadOnly() || len(m.Mount.GetUidMappings())+len(m.Mount.GetGidMappings()) > 0
}

// mountAccess is rw or ro. An image is always read-only.
func (b *build) mountAccess(m *runtimeapi.Mount) (string, error) {
	readonly := m.GetReadonly() || m.GetImage().GetImage() != ""
	switch {
	case m.GetRecursiveReadOnly() && !readonly:
		return "", fmt.Errorf("recursive_read_only is asked for and readonly is not")
	case m.GetRecursiveReadOnly() && m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return "", fmt.Errorf("recursive_read_only needs private propagation")
	case readonly:
		return "ro", nil
	}
	return "rw", nil
}

// propagation also lets the root of the container take part, or nothing would reach the mounts below it.
func (b *build) propagation(p runtimeapi.MountPropagation) (string, error) {
	root := &b.out.Linux.RootfsPropagation
	switch p {
	case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return "rprivate", nil
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		if *root == "" {
			*root = "rslave"
		}
		return "rslave", nil
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		if b.Paths.UserNS != "" {
			return "", errors.New("bidirectional propagation: no mount of a pod with a user namespace can appear on the host")
		}
		*root = "rshared"
		return "rshared", nil
	}
	return "", fmt.Errorf("propagation %d is not one that CRI defines", p)
}
