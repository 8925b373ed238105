package peer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"berth/internal/config"
)

// WriteNetwork writes a CNI configuration as small clusters have it, on a bridge of its own.
func WriteNetwork(dir, bridge, subnet string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "%[1]s", "plugins": [
 {"type": "bridge", "bridge": "%[1]s", "isGateway": true, "ipMasq": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "%[3]s", "ranges": [[{"subnet": "%[2]s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`, bridge, subnet, filepath.Join(dir, "leases"))
	return os.WriteFile(filepath.Join(dir, "10-bench.conflist"), []byte(text), 0o644)
}

func berthConfig(s Setup, name, dir string) string {
	return fmt.Sprintf(`root = "%[1]s/root"
state = "%[6]s"
socket = "%[2]s"
[cni]
config_dir = "%[1]s/net.d"
plugin_dirs = ["%[3]s"]
[registry]
config_dir = "%[4]s"
[runtimes]
default = "runc"
[runtimes.runc]
path = "%[5]s"
%[7]s`, dir, socket(name), s.Plugins, s.Images.Certs, s.Runc(), state(name), s.Handler)
}

func beforeConfig(s Setup, name, dir string) string {
	text := berthConfig(s, name, dir)
	if s.BeforeUnpack != "" {
		text += fmt.Sprintf("[images]\nunpack = %q\n", s.BeforeUnpack)
	}
	return text
}

// BerthGroup names the cgroups that a Berth daemon of a Setup with this Dir keeps for itself: that of this name. They
// outlive it.
func BerthGroup(dir, name string) string {
	return (&config.Config{Root: filepath.Join(dir, name, "root")}).Instance()
}

func berthCommand(s Setup, config string) *exec.Cmd {
	return exec.Command(filepath.Join(s.Berth, "berth"), "serve", "--config", config)
}

func beforeCommand(s Setup, config string) *exec.Cmd {
	return exec.Command(filepath.Join(s.Before, "berth"), "serve", "--config", config)
}

// containerdConfig changes where things are and which pause image there is; all else is containerd's default. Where
// oom_score_adj cannot be lowered it is told so, because it would fail every pod.
func containerdConfig(s Setup, name, dir string) string {
	return fmt.Sprintf(`version = 4
root = '%[1]s/root'
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
      bin_dirs = ['%[3]s']
      conf_dir = '%[1]s/net.d'
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
`, dir, socket(name), s.Plugins, s.Images.Certs, s.Runc(), s.Images.Pause, state(name))
}

func containerdCommand(s Setup, config string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.Programs, "containerd"), "--config", config)
	cmd.Env = append(os.Environ(), "PATH="+s.Programs+":"+os.Getenv("PATH"))
	return cmd
}
