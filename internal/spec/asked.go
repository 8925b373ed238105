package spec

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
)

// tmpfsOptions is what may be said of an empty directory in memory, and tmpfsOpposites what of it takes the usual away.
var (
	tmpfsOptions = regexp.MustCompile(`^(ro|rw|noexec|nosuid|nodev|noatime|relatime|strictatime|` +
		`size=[0-9]+[kmgKMG%]?|mode=[0-7]{1,4}|uid=[0-9]{1,10}|gid=[0-9]{1,10}|nr_inodes=[0-9]+[kmgKMG]?)$`)
	tmpfsOpposites = map[string]string{"exec": "noexec", "suid": "nosuid"}
)

// ParseTmpfs reads where an empty directory in memory is mounted, and how: PATH or PATH:OPTION,OPTION. Programs in it
// do not run, unless the options have exec; it is writable for all, as /tmp is, unless they have a mode.
func ParseTmpfs(text string) (specs.Mount, error) {
	at, list, _ := strings.Cut(text, ":")
	m := specs.Mount{Destination: path.Clean(at), Type: "tmpfs", Source: "tmpfs",
		Options: []string{"nosuid", "nodev", "noexec", "mode=1777"}}
	if !path.IsAbs(at) || m.Destination == "/" {
		return m, fmt.Errorf("%q is not a path in the container", at)
	}
	if list == "" {
		return m, nil
	}
	for option := range strings.SplitSeq(list, ",") {
		usual := tmpfsOpposites[option]
		switch {
		case usual != "":
			m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == usual })
			continue
		case !tmpfsOptions.MatchString(option):
			return m, fmt.Errorf("option %q is not one of ro, exec, suid, size, mode, uid, gid, nr_inodes", option)
		case strings.HasPrefix(option, "mode="):
			m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "mode=") })
		}
		if !slices.Contains(m.Options, option) {
			m.Options = append(m.Options, option)
		}
	}
	return m, nil
}

// tmpfs are the mounts that the container asks for by its annotation.
func tmpfs(c *runtimeapi.ContainerConfig) (mounts []specs.Mount, err error) {
	texts, err := annotation.Tmpfs(c.GetAnnotations())
	for _, text := range texts {
		m, err := ParseTmpfs(text)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", annotation.KeyTmpfs, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, err
}
