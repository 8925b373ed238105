package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/crio"
	"berth/test/fixture"
	"berth/test/timeouts"
)

// readOnly is the port at which the kubelet tells its metrics to everybody.
const readOnly = "10255"

// CAdvisor has a kubelet without an API server, and without the feature gate by which it takes all statistics from the
// runtime, run a pod of two containers. Its cAdvisor has to tell of both by their names, where the daemon is configured
// to answer as CRI-O.
func CAdvisor(ctx context.Context, dir string, o Options) (err error) {
	if err := os.MkdirAll(o.Results, 0o755); err != nil {
		return err
	}
	registry, err := fixture.StartRegistry(fixture.RegistryOptions{})
	if err != nil {
		return err
	}
	n := &namespaces{
		dir: dir, runtime: o.Runtime, setup: makeRoomForCRIO,
		config: fmt.Sprintf("cgroup_names = \"crio\"\ncrio_socket = %q\n", crio.Socket),
	}
	defer func() { err = errors.Join(err, n.close(), registry.Close(), leaveCRIO()) }()
	recipe, err := fixture.BusyboxRecipe()
	if err != nil {
		return err
	}
	img, err := recipe.Build()
	if err != nil {
		return err
	}
	if _, err := registry.Push("library/web:v1", img); err != nil {
		return err
	}
	if err := n.open(registry); err != nil {
		return err
	}
	end, err := kubeletWithPod(n, o.Results, hosts[0]+"/library/web:v1")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return knowsNames(ctx, n)
}

// makeRoomForCRIO mounts, in the node, a place of its own for the socket.
func makeRoomForCRIO() error {
	dir := filepath.Dir(crio.Socket)
	return errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("crio", dir, "tmpfs", 0, "size=64k"))
}

// leaveCRIO removes what that has left on the machine.
func leaveCRIO() error {
	err := os.Remove(filepath.Dir(crio.Socket)) // the node's mount has gone with it
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

// kubeletWithPod starts a kubelet with a static pod, and returns what ends it.
func kubeletWithPod(n *namespaces, results, image string) (end func() error, err error) {
	root := filepath.Join(n.dir, "kubelet")
	manifests := filepath.Join(root, "manifests")
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		return nil, err
	}
	container := func(name string) any {
		return map[string]any{"name": name, "image": image, "command": []string{"sleep", "1000000000"}}
	}
	pod, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "named", "namespace": "default"},
		"spec": map[string]any{
			"terminationGracePeriodSeconds": 1, "containers": []any{container("web"), container("second")},
		},
	})
	if err != nil {
		return nil, err
	}
	config := filepath.Join(root, "config.yaml")
	err = errors.Join(os.WriteFile(filepath.Join(manifests, "pod.json"), pod, 0o644), os.WriteFile(config, []byte(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://`+n.node.Socket+`
staticPodPath: `+manifests+`
readOnlyPort: `+readOnly+`
address: 127.0.0.1
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
featureGates: {PodAndContainerStatsFromCRI: false}
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
`), 0o644))
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(results, "kubelet-cadvisor.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(ProgramsCache(), "kubelet"), "--config="+config, "--root-dir="+root,
		"--cert-dir="+root, "--hostname-override="+nodeName)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := n.start(cmd); err != nil {
		return nil, err
	}
	return func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}, nil
}

// knowsNames waits until the metrics of the kubelet's cAdvisor name both containers.
func knowsNames(ctx context.Context, n *namespaces) error {
	wanted := map[string]bool{}
	for _, metric := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"} {
		for _, name := range []string{"web", "second"} {
			wanted[metric+`{container="`+name+`"`] = true
		}
	}
	for since := time.Now(); ; time.Sleep(time.Second) {
		page, err := n.node.Get("http://127.0.0.1:" + readOnly + "/metrics/cadvisor")
		for line := range strings.Lines(page) {
			if begin, _, ok := strings.Cut(line, ","); ok && strings.Contains(line, `namespace="default",pod="named-`+nodeName) {
				delete(wanted, begin)
			}
		}
		if len(wanted) == 0 {
			return nil
		}
		if ctx.Err() != nil || time.Since(since) > timeouts.For(2*time.Minute) {
			return errors.Join(fmt.Errorf("the kubelet's cAdvisor does not tell of %v", wanted), err, ctx.Err())
		}
	}
}
