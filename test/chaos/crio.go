package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// crioCommand writes the files that CRI-O shares with other tools of its family, and returns how it is started.
func crioCommand(s *stage) (func() *exec.Cmd, error) {
	registries, storage := filepath.Join(s.Dir, "registries.conf"), filepath.Join(s.Dir, "storage.conf")
	for path, text := range map[string]string{
		registries:    fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", registryAddr),
		storage:       fmt.Sprintf("[storage]\ndriver = %q\n", "overlay"),
		policyFile(s): `{"default": [{"type": "insecureAcceptAnything"}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(s.Programs, "crio"), "--config", configFile(s), "--config-dir", "",
			"--registries-conf", registries)
		cmd.Env = append(os.Environ(), "PATH="+s.Programs+":"+os.Getenv("PATH"), "CONTAINERS_STORAGE_CONF="+storage)
		return cmd
	}, nil
}

// policyFile is the file that says which images may be pulled.
func policyFile(s *stage) string { return filepath.Join(s.Dir, "policy.json") }

func crioConfiguration(s *stage, oci, plugins string) string {
	return fmt.Sprintf(crioConfig, s.root, filepath.Dir(s.socket), s.socket, plugins, s.net, s.Runtime, oci,
		pauseImage, policyFile(s))
}

// crioConfig changes where things are, which pause image there is, and the cgroup driver, for systemd cannot be
// reached from the run's namespaces. conmon and pinns are found by PATH. All else is CRI-O's default, the
// check of its storage after a kill included.
const crioConfig = `[crio]
root = %[1]q
runroot = "%[2]s/storage"
storage_driver = "overlay"
[crio.api]
listen = %[3]q
[crio.runtime]
cgroup_manager = "cgroupfs"
default_runtime = %[6]q
[crio.runtime.runtimes.%[6]s]
runtime_path = %[7]q
runtime_root = "/run/%[6]s"
monitor_cgroup = "pod"
[crio.image]
pause_image = %[8]q
pause_command = "/webapp stubborn"
signature_policy = %[9]q
[crio.network]
network_dir = %[5]q
plugin_dirs = %[4]s
`
