package service

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/test/fixture"
	"berth/test/installed"
	"berth/test/timeouts"
)

// programsVariable names a directory with kubelet, containerd, its shim and ctr.
const programsVariable = "BERTH_TEST_MOVE_PROGRAMS"

// What a kubelet and a client call the runtimes.
const (
	berthSocket      = "unix:///run/berth/berth.sock"
	containerdSocket = "unix:///run/containerd/containerd.sock"
)

// move is a node with a kubelet that has static pods.
type move struct {
	*testing.T
	programs string
	registry *fixture.Registry
	last     time.Time // when the step before ended
}

// TestMoveFromContainerd moves a node with pods from containerd to Berth and back, by the steps of docs/coming-from.md.
// There is no registry while the pods start anew: they run from the images that were taken over.
func TestMoveFromContainerd(t *testing.T) {
	m := &move{T: t, programs: os.Getenv(programsVariable), last: time.Now()}
	if m.programs == "" {
		t.Skip("no programs are named by " + programsVariable)
	}
	t.Setenv("PATH", m.programs+":"+os.Getenv("PATH"))
	m.images()
	installed.Network(t)
	m.containerd()
	m.kubelet(containerdSocket)
	installed.Run(t, "systemctl", "enable", "--now", "containerd", "kubelet")
	m.running("containerd://")
	before := m.names()
	t.Logf("containerd has\n%s", before)
	m.step("pods run under containerd")

	installed.Run(t, "dpkg", "-i", installed.Deb(t))
	serving(t, 0)
	t.Logf("%s", installed.Run(t, "berth", "migrate", "containerd", "--only", "settings"))
	hosts := installed.Run(t, "cat", "/etc/berth/certs.d/docker.io/hosts.toml")
	if !strings.Contains(hosts, m.registry.Addr) {
		t.Errorf("the mirror is not in\n%s", hosts)
	}
	out, err := installed.Try("berth", "migrate", "containerd", "--only", "images")
	if err == nil || !strings.Contains(out, "systemctl stop containerd") {
		t.Errorf("from a containerd that runs: %v %s", err, out)
	}
	m.step("the package is installed, and the settings are taken over")

	began := time.Now()
	installed.Run(t, "systemctl", "stop", "kubelet")
	installed.Run(t, "berth", "--socket", containerdSocket, "rmp", "-fa")
	installed.Run(t, "systemctl", "disable", "--now", "containerd")
	installed.Eventually(t, "no shim of containerd is left", func() bool {
		shims, _ := installed.Try("pgrep", "containerd-shim")
		return shims == ""
	})
	m.step("kubelet, pods and containerd have ended")

	installed.Run(t, "systemctl", "restart", unit)
	serving(t, 0)
	out = installed.Run(t, "berth", "migrate", "containerd", "--only", "images")
	t.Logf("%s", out)
	if strings.Count(out, ": taken over") != 3 {
		t.Error("not all of 3 images were taken over")
	}
	m.step("the images are taken over")
	installed.Run(t, "berth", "pull", "docker.io/library/later:v1") // by the mirror that was taken over
	if err := m.registry.Close(); err != nil {
		t.Fatal(err)
	}

	m.kubelet(berthSocket)
	installed.Run(t, "systemctl", "start", "kubelet")
	m.running("berth://")
	m.step("pods run under Berth")
	t.Logf("from the end of the kubelet until all pods ran under Berth: %v", time.Since(began).Round(time.Second))
	t.Logf("%s\n%s", installed.Run(t, "berth", "ps"), installed.Run(t, "berth", "images"))
	m.beside()
	m.step("a pod of berth run was beside the kubelet's")

	began = time.Now()
	installed.Run(t, "systemctl", "stop", "kubelet")
	installed.Run(t, "berth", "rmp", "-fa")
	installed.Run(t, "systemctl", "disable", "--now", unit)
	installed.WantNothingRuns(t)
	installed.Run(t, "systemctl", "enable", "--now", "containerd")
	m.kubelet(containerdSocket)
	installed.Run(t, "systemctl", "start", "kubelet")
	m.running("containerd://")
	m.step("pods run under containerd again")
	t.Logf("back until all pods ran under containerd: %v", time.Since(began).Round(time.Second))
	if after := m.names(); after != before {
		t.Errorf("containerd has other images than before:\n%s", after)
	}
}

// rounds is how long the kubelet has for what it does about pods that it does not know: every two seconds it ends them,
// every minute it removes what has ended.
const rounds = 70 * time.Second

// beside runs a pod by hand next to those of the kubelet, which leaves it alone, also when it starts again. Once
// the key shows it the pod, the kubelet ends and removes it: so it would have, had it seen the pod before.
func (m *move) beside() {
	m.Helper()
	id := installed.Run(m.T, "berth", "run", "-d", "--name", "hand", "docker.io/library/web:v1")
	var pod struct {
		Status struct{ Network struct{ IP string } }
	}
	text := installed.Run(m.T, "berth", "inspect", "--type", "pod", "hand")
	if err := json.Unmarshal([]byte(text), &pod); err != nil {
		m.Fatalf("%v: %s", err, text)
	}
	answers := func() bool {
		page, err := get("http://" + pod.Status.Network.IP + "/")
		return err == nil && page == "I am web:v1"
	}
	installed.Eventually(m.T, "the pod that was run by hand answers", answers)
	lives := func(when string) {
		m.Helper()
		if c := installed.Find(m.T, "hand"); c.ID != id || c.State != installed.Running || !answers() {
			m.Errorf("%s the container %s of berth run is %+v, answers: %v", when, id, c, answers())
		}
		m.running("berth://")
	}
	time.Sleep(rounds)
	lives("beside a kubelet")
	installed.Run(m.T, "systemctl", "restart", "kubelet")
	time.Sleep(rounds)
	lives("after a restart of the kubelet")
	kubelet := installed.Run(m.T, "journalctl", "-b", "-u", "kubelet", "--no-pager", "-o", "cat")
	if strings.Contains(kubelet, id) {
		m.Errorf("the kubelet speaks of the container of berth run:\n%s", kubelet)
	}

	const key = "/etc/berth/conf.d/60-shown.toml"
	m.write(key, "[pods]\nlist_run = true\n")
	installed.Run(m.T, "systemctl", "restart", unit)
	serving(m.T, 0)
	began := time.Now()
	installed.Eventually(m.T, "the kubelet has ended the pod that it was shown", func() bool {
		pods := installed.Run(m.T, "berth", "pods", "-q", "--name", "^hand$")
		return pods == "" || !strings.Contains(installed.Run(m.T, "berth", "ps", "-q", "--no-trunc"), id)
	})
	m.Logf("a pod of berth run that is shown to the kubelet was ended after %v", time.Since(began).Round(time.Second))
	m.running("berth://")
	installed.Run(m.T, "rm", key)
	installed.Run(m.T, "systemctl", "restart", unit)
	serving(m.T, 0)
}

// names are those of the images that containerd has, without what ctr thinks of its configuration.
func (m *move) names() string {
	m.Helper()
	var out []string
	for line := range strings.Lines(installed.Run(m.T, "ctr", "-n", "k8s.io", "images", "ls", "-q")) {
		if !strings.HasPrefix(line, "time=") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out, "\n")
}

// step says how long the node took to come here.
func (m *move) step(what string) {
	m.Logf("%s: %v", what, time.Since(m.last).Round(100*time.Millisecond))
	m.last = time.Now()
}

func (m *move) write(path, text string) {
	m.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.Fatal(err)
	}
}

// images has a registry of this machine with images, and pods that run them: one by its tag, one by its digest.
func (m *move) images() {
	m.Helper()
	registry, err := fixture.StartRegistry(fixture.RegistryOptions{})
	if err != nil {
		m.Fatal(err)
	}
	m.registry = registry
	m.Cleanup(func() { _ = registry.Close() })
	push := func(name string, cmd ...string) (byDigest string) {
		recipe, err := fixture.BusyboxRecipe()
		if err != nil {
			m.Fatal(err)
		}
		recipe.Config = v1.Config{Cmd: cmd, Env: recipe.Config.Env}
		recipe.Layers = append(recipe.Layers, []fixture.File{{Name: "www/index.html", Body: []byte("I am " + name)}})
		img, err := recipe.Build()
		if err != nil {
			m.Fatal(err)
		}
		if byDigest, err = registry.Push("library/"+name, img); err != nil {
			m.Fatal(err)
		}
		return strings.Replace(byDigest, registry.Addr, "docker.io", 1)
	}
	push("pause:1", "sleep", "1000000000")
	push("later:v1", "true")
	push("web:v1", "httpd", "-f", "-p", "80", "-h", "/www")
	m.pod("by-tag", "docker.io/library/web:v1")
	m.pod("by-digest", push("other:v1", "httpd", "-f", "-p", "80", "-h", "/www"))
}

// pod is a static pod of the kubelet.
func (m *move) pod(name, image string) {
	m.Helper()
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{
			"terminationGracePeriodSeconds": 1,
			"containers": []any{
				map[string]any{"name": "web", "image": image, "imagePullPolicy": "IfNotPresent"},
				map[string]any{"name": "second", "image": image, "command": []string{"sleep", "1000000000"}},
			},
		},
	})
	if err != nil {
		m.Fatal(err)
	}
	m.write("/etc/kubernetes/manifests/"+name+".json", string(text))
}

// containerd configures one that reaches docker.io by a mirror.
func (m *move) containerd() {
	m.Helper()
	m.write("/etc/containerd/config.toml", fmt.Sprintf(`version = 3
[plugins.'io.containerd.cri.v1.images']
  max_concurrent_downloads = 5
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = 'docker.io/library/pause:1'
  [plugins.'io.containerd.cri.v1.images'.registry.mirrors.'docker.io']
    endpoint = [%q]
[plugins.'io.containerd.cri.v1.runtime']
  max_container_log_line_size = 8192
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni']
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = true
`, m.registry.URL()))
	m.unit("containerd", "Type=notify\nDelegate=yes\nKillMode=process\nExecStart="+m.programs+"/containerd")
}

// kubelet configures one that asks the runtime at a socket.
func (m *move) kubelet(socket string) {
	m.Helper()
	m.write("/var/lib/kubelet/config.yaml", `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: `+socket+`
staticPodPath: /etc/kubernetes/manifests
readOnlyPort: 10255
address: 127.0.0.1
failSwapOn: false
cgroupDriver: systemd
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
`)
	m.unit("kubelet", "ExecStart="+m.programs+"/kubelet --config=/var/lib/kubelet/config.yaml --hostname-override=node")
}

func (m *move) unit(name, service string) {
	m.Helper()
	m.write("/etc/systemd/system/"+name+".service", "[Unit]\nDescription="+name+"\n[Service]\nEnvironment=PATH="+
		os.Getenv("PATH")+"\n"+service+"\n[Install]\nWantedBy=multi-user.target\n")
	installed.Run(m.T, "systemctl", "daemon-reload")
}

// kubeletPods is what a kubelet tells of its pods, as far as it is looked at.
type kubeletPods struct {
	Items []struct {
		Metadata struct{ Name string }
		Status   struct {
			PodIP             string
			ContainerStatuses []struct {
				Ready       bool
				ContainerID string
			}
		}
	}
}

// running waits until each container of the pods runs, made by the runtime whose ids begin so, and each pod answers.
func (m *move) running(runtime string) {
	m.Helper()
	said := time.Now()
	for deadline := time.Now().Add(timeouts.For(3 * time.Minute)); ; time.Sleep(500 * time.Millisecond) {
		why := m.missing(runtime)
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			kubelet, _ := installed.Try("journalctl", "-b", "-u", "kubelet", "-n", "60", "--no-pager", "-o", "cat")
			other, _ := installed.Try("journalctl", "-b", "-u", "containerd", "-n", "40", "--no-pager", "-o", "cat")
			m.Fatalf("%s\nthe kubelet said\n%s\ncontainerd said\n%s\n%s", why, kubelet, other, installed.Journal())
		}
		if time.Since(said) > 10*time.Second { // the machine is taken for dead when it says nothing
			m.Log("waiting: " + why)
			said = time.Now()
		}
	}
}

// missing says what is not as running wants it.
func (m *move) missing(runtime string) string {
	text, err := get("http://127.0.0.1:10255/pods")
	if err != nil {
		return err.Error()
	}
	var pods kubeletPods
	if err := json.Unmarshal([]byte(text), &pods); err != nil {
		return err.Error()
	}
	if len(pods.Items) != 2 {
		return fmt.Sprintf("the kubelet has %d pods", len(pods.Items))
	}
	for _, p := range pods.Items {
		if len(p.Status.ContainerStatuses) != 2 {
			return p.Metadata.Name + " has not all containers"
		}
		for _, c := range p.Status.ContainerStatuses {
			if !c.Ready || !strings.HasPrefix(c.ContainerID, runtime) {
				return fmt.Sprintf("%s has a container %q, ready: %v", p.Metadata.Name, c.ContainerID, c.Ready)
			}
		}
		if page, err := get("http://" + p.Status.PodIP + "/"); err != nil || !strings.HasPrefix(page, "I am ") {
			return fmt.Sprintf("%s says %q: %v", p.Metadata.Name, page, err)
		}
	}
	return ""
}

func get(url string) (string, error) {
	client := http.Client{Timeout: timeouts.For(5 * time.Second)}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}
