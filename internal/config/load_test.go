package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// TestNoFile has a drop-in be no file. To open a FIFO would wait for ever for somebody who writes to it.
func TestNoFile(t *testing.T) {
	path := write(t, map[string]string{"config.toml": ""})
	dir := filepath.Join(filepath.Dir(path), "conf.d")
	if err := errors.Join(os.Mkdir(dir, 0o755), unix.Mkfifo(filepath.Join(dir, "10-a.toml"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Flags{Path: path}); !errors.Is(err, limit.ErrNotRegular) {
		t.Errorf("a FIFO: %v", err)
	}
}

// TestRefusedPlaces wants paths to be refused with which nothing could work.
func TestRefusedPlaces(t *testing.T) {
	long := "/" + strings.Repeat("s", 107)
	for name, c := range map[string]struct{ text, want string }{
		"long root": {"root = \"" + long + "56789\"\n", "F:1: root: is 113 bytes long; the kernel mounts the roots of " +
			"containers below a path of 112"},
		"colon": {"root = \"/a:b\"\n", "F:1: root: \"/a:b\" has the character ':', below which no container can start"},
		"backslash": {"[images]\nroot = '/a\\b'\n", `F:2: images.root: "/a\\b" has the character '\\', below which ` +
			"no container can start"},
		"pattern": {"state = \"/a[b\"\n", "F:1: state: \"/a[b\" has the character '[', below which no container can start"},
		"percent": {"socket = \"/a%41\"\n", "F:1: socket: \"/a%41\" has the character '%', which clients take for another"},
		"crio socket without names": {"crio_socket = \"/c\"\n", "F:1: crio_socket: cAdvisor asks there about containers " +
			"whose cgroups are called as CRI-O's: it takes cgroup_names = \"crio\""},
		"long crio socket": {"cgroup_names = \"crio\"\ncrio_socket = \"" + long + "\"\n", "F:2: crio_socket: is 108 bytes " +
			"long; the kernel allows a socket 107"},
		"one socket": {"cgroup_names = \"crio\"\ncrio_socket = \"/s\"\nsocket = \"/s\"\n", "F:2: crio_socket: \"/s\" is " +
			"the socket of CRI already"},
	} {
		path := write(t, map[string]string{"config.toml": c.text})
		_, err := Load(Flags{Path: path, PathSet: true})
		if want := strings.Replace(c.want, "F:", path+":", 1); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, wanted %s", name, err, want)
		}
	}
}
