package peer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/pelletier/go-toml/v2"

	"berth/internal/config"
)

func setup(t *testing.T) Setup {
	t.Helper()
	return Setup{
		Programs: "/p/bin", Plugins: "/p/cni", Berth: "/b", Dir: t.TempDir(), CgroupParent: "/bench",
		Images: Images{Pod: "127.0.0.1:1/pod:1", Pause: "127.0.0.1:1/pause:1", Certs: "/certs"},
	}
}

func TestBerthAcceptsItsConfiguration(t *testing.T) {
	s := setup(t)
	c := load(t, s, berthConfig(s, "berth", s.Dir))
	if c.Root != s.Dir+"/root" || c.State != "/run/berth" || c.Socket != socket("berth") {
		t.Errorf("root %s, state %s, socket %s", c.Root, c.State, c.Socket)
	}
	if c.Runtimes.Default != "runc" {
		t.Errorf("the default runtime is %q", c.Runtimes.Default)
	}
}

func load(t *testing.T, s Setup, text string) *config.Config {
	t.Helper()
	path := filepath.Join(s.Dir, "berth.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Flags{Path: path, PathSet: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheOtherBuildMayUnpackInItsDaemon(t *testing.T) {
	s := setup(t)
	if text := beforeConfig(s, Before, s.Dir); text != berthConfig(s, Before, s.Dir) {
		t.Errorf("a build that may not know the key is given it:\n%s", text)
	}
	s.BeforeUnpack = config.UnpackInDaemon
	if c := load(t, s, beforeConfig(s, Before, s.Dir)); c.Images.Unpack != config.UnpackInDaemon {
		t.Errorf("%q unpacks", c.Images.Unpack)
	}
}

func TestContainerdConfigurationSaysWhereThingsAre(t *testing.T) {
	s := setup(t)
	var c struct {
		Version     int
		Root, State string
		Plugins     map[string]map[string]any
	}
	if err := toml.Unmarshal([]byte(containerdConfig(s, "containerd", s.Dir)), &c); err != nil {
		t.Fatal(err)
	}
	if c.Version != 4 || c.Root != s.Dir+"/root" || c.State != "/run/containerd" {
		t.Errorf("version %d, root %s, state %s", c.Version, c.Root, c.State)
	}
	for plugin, key := range map[string]string{
		"io.containerd.cri.v1.images": "pinned_images", "io.containerd.cri.v1.runtime": "cni",
		"io.containerd.server.v1.grpc": "address",
	} {
		if c.Plugins[plugin][key] == nil {
			t.Errorf("%s of %s is not set", key, plugin)
		}
	}
}

func TestCRIOConfigurationSaysWhereThingsAre(t *testing.T) {
	s := setup(t)
	var c struct {
		CRIO struct {
			Root, Runroot string
			API           struct{ Listen string }
			Runtime       struct {
				Runtimes map[string]struct {
					Path string `toml:"runtime_path"`
				}
			}
			Image struct {
				Policy string `toml:"signature_policy"`
			}
			Network struct {
				Dirs []string `toml:"plugin_dirs"`
			}
		} `toml:"crio"`
	}
	if err := toml.Unmarshal([]byte(crioConfig(s, CRIO, s.Dir)), &c); err != nil {
		t.Fatal(err)
	}
	if c.CRIO.Root != s.Dir+"/root" || c.CRIO.Runroot != "/run/crio/storage" || c.CRIO.API.Listen != socket(CRIO) {
		t.Errorf("root %s, runroot %s, socket %s", c.CRIO.Root, c.CRIO.Runroot, c.CRIO.API.Listen)
	}
	if p := c.CRIO.Runtime.Runtimes["runc"].Path; p != s.Runc() {
		t.Errorf("runc is %s", p)
	}
	if c.CRIO.Image.Policy != s.Dir+"/policy.json" || crioFiles(s)["policy.json"] == "" {
		t.Errorf("the policy is %s", c.CRIO.Image.Policy)
	}
	if len(c.CRIO.Network.Dirs) != 1 || c.CRIO.Network.Dirs[0] != s.Plugins {
		t.Errorf("plugins are in %v", c.CRIO.Network.Dirs)
	}
	var registries struct {
		Registry []struct {
			Location string
			Insecure bool
		}
	}
	if err := toml.Unmarshal([]byte(crioFiles(s)["registries.conf"]), &registries); err != nil {
		t.Fatal(err)
	}
	if r := registries.Registry; len(r) != 1 || r[0].Location != "127.0.0.1:1" || !r[0].Insecure {
		t.Errorf("registries %+v", r)
	}
}

func TestNetworkIsACNIConfiguration(t *testing.T) {
	dir := t.TempDir()
	if err := WriteNetwork(dir, "bn0", "10.1.0.0/16"); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromFile(filepath.Join(dir, "10-bench.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, p := range list.Plugins {
		types = append(types, p.Network.Type)
	}
	got, _ := json.Marshal(types)
	if list.Name != "bn0" || string(got) != `["bridge","portmap"]` {
		t.Errorf("network %s with plugins %s", list.Name, got)
	}
}
