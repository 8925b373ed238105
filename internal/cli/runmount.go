package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/pflag"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
	"berth/internal/fail"
	"berth/internal/spec"
)

// volumeOptions are the flags of berth run about what is mounted into a container.
type volumeOptions struct {
	volumes, mounts, tmpfs []string
}

func (o *volumeOptions) register(f *pflag.FlagSet) {
	f.StringArrayVarP(&o.volumes, "volume", "v", nil,
		"`paths` of a bind mount: HOST:CONTAINER[:ro]")
	f.StringArrayVar(&o.mounts, "mount", nil, "a `mount`: "+
		"type=bind,src=HOST,dst=CONTAINER[,ro][,bind-propagation=rslave], "+
		"type=tmpfs,dst=CONTAINER[,tmpfs-size=64m][,tmpfs-mode=1777], or type=image,src=IMAGE,dst=CONTAINER")
	f.StringArrayVar(&o.tmpfs, "tmpfs", nil, "`path` of an empty directory in memory: CONTAINER[:size=64m,mode=1777,...]")
}

// apply adds the mounts to the container.
func (o *volumeOptions) apply(c *runtimeapi.ContainerConfig) error {
	mounts, err := each(o.volumes, parseVolume)
	if err != nil {
		return err
	}
	c.Mounts = mounts
	tmpfs := slices.Clone(o.tmpfs)
	for _, text := range o.mounts {
		m, memory, err := parseMount(text)
		if err != nil {
			return fail.New(errdefs.ErrInvalidArgument, "--mount %s: %w", text, err)
		}
		if memory != "" {
			tmpfs = append(tmpfs, memory)
			continue
		}
		c.Mounts = append(c.Mounts, m)
	}
	if len(tmpfs) == 0 {
		return nil
	}
	for _, text := range tmpfs {
		if _, err := spec.ParseTmpfs(text); err != nil {
			return fail.New(errdefs.ErrInvalidArgument, "--tmpfs %s: %w", text, err)
		}
	}
	list, err := annotation.List(tmpfs)
	c.Annotations[annotation.KeyTmpfs] = list
	return err
}

// mountText is a --mount taken apart.
type mountText struct {
	kind, source, target, propagation string
	readonly                          bool
	memory                            []string // options of a tmpfs
}

// parseMount reads a --mount: a mount of CRI, or the text of a --tmpfs.
func parseMount(text string) (*runtimeapi.Mount, string, error) {
	t := mountText{kind: "bind"}
	for field := range strings.SplitSeq(text, ",") {
		if err := t.set(field); err != nil {
			return nil, "", err
		}
	}
	if !filepath.IsAbs(t.target) {
		return nil, "", fmt.Errorf("dst, the place in the container, must begin with /")
	}
	m := &runtimeapi.Mount{ContainerPath: t.target, Readonly: t.readonly}
	switch t.kind {
	case "tmpfs":
		if t.readonly {
			t.memory = append(t.memory, "ro")
		}
		return nil, strings.TrimSuffix(t.target+":"+strings.Join(t.memory, ","), ":"), nil
	case "image":
		m.Image, m.Readonly = &runtimeapi.ImageSpec{Image: t.source}, true
	case "bind":
		host, err := filepath.Abs(t.source)
		if err != nil {
			return nil, "", err
		}
		m.HostPath = host
		if m.Propagation, err = propagationOf(t.propagation); err != nil {
			return nil, "", err
		}
	default:
		return nil, "", fmt.Errorf("type %s: there is bind, tmpfs and image", t.kind)
	}
	if t.source == "" {
		return nil, "", fmt.Errorf("src, what to mount, is missing")
	}
	return m, "", nil
}

// set takes up one field of a --mount.
func (t *mountText) set(field string) (err error) {
	name, value, given := strings.Cut(field, "=")
	switch name {
	case "type":
		t.kind = value
	case "src", "source":
		t.source = value
	case "dst", "destination", "target":
		t.target = value
	case "ro", "readonly":
		if t.readonly = true; given {
			t.readonly, err = strconv.ParseBool(value)
		}
	case "rw":
		if given {
			t.readonly, err = strconv.ParseBool(value)
			t.readonly = !t.readonly
		}
	case "bind-propagation":
		t.propagation = value
	case "tmpfs-size", "tmpfs-mode":
		t.memory = append(t.memory, strings.TrimPrefix(field, "tmpfs-"))
	default:
		return fmt.Errorf("%q is not known", name)
	}
	return err
}

func propagationOf(text string) (runtimeapi.MountPropagation, error) {
	switch text {
	case "", "private", "rprivate":
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case "slave", "rslave":
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case "shared", "rshared":
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("bind-propagation %s: there is rprivate, rslave and rshared", text)
}

func parseVolume(text string) (*runtimeapi.Mount, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return nil, fmt.Errorf("-v %s: want HOST:CONTAINER or HOST:CONTAINER:ro", text)
	}
	if !filepath.IsAbs(parts[1]) {
		return nil, fmt.Errorf("-v %s: %s, the place in the container, must begin with /", text, parts[1])
	}
	if !strings.Contains(parts[0], "/") && parts[0] != "." && parts[0] != ".." {
		return nil, fail.New(errdefs.ErrInvalidArgument, "-v %s: there are no volumes with names: ./%s is a directory "+
			"here, and /srv/%s one that is the same from everywhere", text, parts[0], parts[0])
	}
	host, err := filepath.Abs(parts[0])
	if err != nil {
		return nil, fmt.Errorf("-v %s: %w", text, err)
	}
	m := &runtimeapi.Mount{HostPath: host, ContainerPath: parts[1]}
	if len(parts) == 3 {
		for option := range strings.SplitSeq(parts[2], ",") {
			if err := volumeOption(m, option); err != nil {
				return nil, fmt.Errorf("-v %s: %w", text, err)
			}
		}
	}
	return m, nil
}

// volumeOption sets one of the options of a -v.
func volumeOption(m *runtimeapi.Mount, option string) (err error) {
	switch option {
	case "ro":
		m.Readonly = true
	case "rw":
	case "z", "Z":
		m.SelinuxRelabel = true
	case "private", "rprivate", "slave", "rslave", "shared", "rshared":
		m.Propagation, err = propagationOf(option)
	default:
		err = fmt.Errorf("there is ro and rw, z and Z, rprivate, rslave and rshared, not %s", option)
	}
	return err
}
