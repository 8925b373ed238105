package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// The folders in which CNI plugins are.
var pluginDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}

// network is what a small cluster has, in a subnet that shows nowhere else.
const network = `{"cniVersion": "1.0.0", "name": "chaos", "plugins": [
 {"type": "bridge", "bridge": "bc0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.89.0.0/16"}]],
   "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

func (s *stage) leases() string { return filepath.Join(s.Dir, "leases") }

// peerCommand writes the configuration of the runtime that is struck, and returns how it is started.
func (s *stage) peerCommand() (func() *exec.Cmd, error) {
	oci, err := exec.LookPath(s.Runtime)
	if err != nil {
		return nil, fmt.Errorf("find the runtime: %w", err)
	}
	plugins, err := json.Marshal(pluginDirs) // a list in TOML as well
	if err != nil {
		return nil, err
	}
	hosts := fmt.Sprintf("server = \"http://%[1]s\"\n[host.\"http://%[1]s\"]\n"+
		"capabilities = [\"pull\", \"resolve\"]\n", registryAddr)
	for path, text := range map[string]string{
		filepath.Join(s.net, "10-chaos.conflist"):          fmt.Sprintf(network, s.leases()),
		filepath.Join(s.certs, registryAddr, "hosts.toml"): hosts,
		configFile(s): s.configuration(oci, string(plugins)),
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	switch s.Peer {
	case Containerd:
		return func() *exec.Cmd {
			cmd := exec.Command(filepath.Join(s.Programs, "containerd"), "--config", configFile(s))
			cmd.Env = append(os.Environ(), "PATH="+s.Programs+":"+os.Getenv("PATH"))
			return cmd
		}, nil
	case CRIO:
		return crioCommand(s)
	}
	return func() *exec.Cmd {
		return exec.Command(filepath.Join(s.Berth, "berth"), "serve", "--config", configFile(s), "--log-level", "debug")
	}, nil
}

func configFile(s *stage) string { return filepath.Join(s.Dir, "config.toml") }

func (s *stage) configuration(oci, plugins string) string {
	state := filepath.Dir(s.socket)
	switch s.Peer {
	case Containerd:
		return fmt.Sprintf(containerdConfig, s.root, s.socket, plugins, s.certs, oci, pauseImage, state, s.net)
	case CRIO:
		return crioConfiguration(s, oci, plugins)
	}
	driver := "cgroupfs" // systemd cannot be reached from the run's namespaces
	if s.Machine {
		driver = "systemd"
	}
	return fmt.Sprintf(berthConfig, s.root, state, s.socket, s.net, plugins, s.certs, s.Runtime, oci, driver)
}

const berthConfig = `root = %[1]q
state = %[2]q
socket = %[3]q
cgroup_driver = %[9]q
[cni]
config_dir = %[4]q
plugin_dirs = %[5]s
[registry]
config_dir = %[6]q
[runtimes]
default = %[7]q
[runtimes.%[7]s]
path = %[8]q
`

// containerdConfig changes where things are and which pause image there is; all else is containerd's default. Where
// oom_score_adj cannot be lowered it is told so, because it would fail every pod.
const containerdConfig = `version = 4
root = '%[1]s'
state = '%[7]s'
imports = []
[plugins]
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '%[6]s'
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '%[4]s'
  [plugins.'io.containerd.cri.v1.runtime']
    restrict_oom_score_adj = true
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '%[5]s'
    [plugins.'io.containerd.cri.v1.runtime'.cni]
      bin_dirs = %[3]s
      conf_dir = '%[8]s'
  [plugins.'io.containerd.internal.v1.opt']
    path = '%[1]s/opt'
  [plugins.'io.containerd.transfer.v1.local']
    config_path = '%[4]s'
  [plugins.'io.containerd.server.v1.grpc']
    address = '%[2]s'
  [plugins.'io.containerd.server.v1.ttrpc']
    address = '%[2]s.ttrpc'
  [plugins.'io.containerd.shim.v1.manager']
    socket_dir = '%[7]s/s'
`
