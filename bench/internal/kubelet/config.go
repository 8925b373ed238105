package kubelet

import (
	"fmt"
	"os"
	"path/filepath"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podConfig is the request of a kubelet for a best-effort pod, and the files that such a pod has on the node.
func (r *Runtime) podConfig(hostNetwork bool) (*cri.PodSandboxConfig, error) {
	n := serial.Add(1)
	name := fmt.Sprintf("bench-%d-%d", os.Getpid(), n)
	uid := fmt.Sprintf("%08x-0000-4000-8000-%012x", os.Getpid(), n)
	dir := r.podDir(name)
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(logPath)), 0o755); err != nil {
		return nil, err
	}
	for _, file := range []string{"hosts", "termination-log"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
			return nil, err
		}
	}
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: uid},
		Hostname:     hostname(name, hostNetwork),
		LogDirectory: dir,
		DnsConfig: &cri.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"bench.svc.cluster.local"},
			Options: []string{"ndots:5"}},
		Labels: map[string]string{
			label: r.Name, "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "bench", "io.kubernetes.pod.uid": uid,
		},
		Annotations: map[string]string{"kubernetes.io/config.source": "api"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: r.cgroupParent(uid),
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: namespaces(hostNetwork),
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
			Resources: &cri.LinuxContainerResources{CpuShares: 2},
		},
	}, nil
}

// hostname is empty for a pod on the node's network, as a kubelet leaves it to the node.
func hostname(name string, hostNetwork bool) string {
	if hostNetwork {
		return ""
	}
	return name
}

func (r *Runtime) cgroupParent(uid string) string {
	if r.CgroupParent == "" {
		return ""
	}
	return filepath.Join(r.CgroupParent, "pod"+uid)
}

func namespaces(hostNetwork bool) *cri.NamespaceOption {
	n := &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
	if hostNetwork {
		n.Network = cri.NamespaceMode_NODE
	}
	return n
}

// logPath is where the container writes its log, within the folder of its pod.
const logPath = "idle/0.log"

func (r *Runtime) containerConfig(pod *cri.PodSandboxConfig) *cri.ContainerConfig {
	c := r.idleConfig(pod)
	for i := range r.Variables {
		c.Envs = append(c.Envs, &cri.KeyValue{
			Key: fmt.Sprintf("SERVICE_%d_PORT_8080_TCP_ADDR", i), Value: fmt.Appendf(nil, "10.96.0.%d", i),
		})
	}
	source := filepath.Join(pod.LogDirectory, "hosts")
	for i := range r.Volumes {
		at := fmt.Sprintf("/var/run/volumes/volume-%d", i)
		c.Mounts = append(c.Mounts, &cri.Mount{ContainerPath: at, HostPath: source, Readonly: true})
	}
	return c
}

func (r *Runtime) idleConfig(pod *cri.PodSandboxConfig) *cri.ContainerConfig {
	labels := map[string]string{"io.kubernetes.container.name": "idle"}
	for k, v := range pod.Labels {
		labels[k] = v
	}
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "idle"},
		Image:    &cri.ImageSpec{Image: r.Image, UserSpecifiedImage: r.Image},
		Command:  r.Idle,
		Envs: []*cri.KeyValue{{Key: Mark, Value: []byte(r.Name)},
			{Key: "KUBERNETES_SERVICE_HOST", Value: []byte("10.96.0.1")}},
		Mounts: []*cri.Mount{
			{ContainerPath: "/etc/hosts", HostPath: filepath.Join(pod.LogDirectory, "hosts")},
			{ContainerPath: "/dev/termination-log", HostPath: filepath.Join(pod.LogDirectory, "termination-log")},
		},
		Labels:      labels,
		Annotations: map[string]string{"io.kubernetes.container.restartCount": "0"},
		LogPath:     logPath,
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{
				CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000, MemoryLimitInBytes: r.Memory,
			},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: pod.Linux.SecurityContext.NamespaceOptions,
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined},
			},
		},
	}
}
