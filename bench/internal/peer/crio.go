package peer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CRIO is the name of CRI-O, which bench/setup builds only when it is asked to.
const CRIO = "crio"

// crioConfig changes where things are, which pause image there is, and the cgroup driver, because systemd cannot be
// reached from the namespaces of a run. CRI-O finds conmon and pinns by PATH. All else is CRI-O's default.
func crioConfig(s Setup, name, dir string) string {
	return fmt.Sprintf(`[crio]
root = "%[1]s/root"
runroot = "%[2]s/storage"
storage_driver = "overlay"
[crio.api]
listen = "%[3]s"
[crio.runtime]
cgroup_manager = "cgroupfs"
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "%[4]s"
runtime_root = "%[2]s/runc"
monitor_cgroup = "pod"
[crio.image]
pause_image = "%[5]s"
signature_policy = "%[6]s"
[crio.network]
network_dir = "%[1]s/net.d"
plugin_dirs = ["%[7]s"]
`, dir, state(name), socket(name), s.Runc(), s.Images.Pause, filepath.Join(dir, "policy.json"), s.Plugins)
}

// crioFiles are the files that CRI-O shares with other tools of its family, by name.
func crioFiles(s Setup) map[string]string {
	registry, _, _ := strings.Cut(s.Images.Pod, "/")
	return map[string]string{
		"registries.conf": fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", registry),
		"storage.conf":    "[storage]\ndriver = \"overlay\"\n",
		"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
	}
}

func crioCommand(s Setup, config string) *exec.Cmd {
	dir := filepath.Dir(config)
	cmd := exec.Command(filepath.Join(s.Programs, "crio"), "--config", config, "--config-dir", "",
		"--registries-conf", filepath.Join(dir, "registries.conf"))
	cmd.Env = append(os.Environ(), "PATH="+s.Programs+":"+os.Getenv("PATH"),
		"CONTAINERS_STORAGE_CONF="+filepath.Join(dir, "storage.conf"))
	return cmd
}
