package node

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var serial atomic.Int64

// Pod is a pod's configuration as the kubelet would send it: its own address, a log folder, the usual namespaces. Each
// edit may change it.
func (n *Node) Pod(name string, edits ...func(*v1.PodSandboxConfig)) *v1.PodSandboxConfig {
	uid := fmt.Sprintf("uid-%d-%d", os.Getpid(), serial.Add(1))
	c := &v1.PodSandboxConfig{
		Metadata:     &v1.PodSandboxMetadata{Name: name, Namespace: "default", Uid: uid},
		Hostname:     name,
		LogDirectory: filepath.Join(n.Logs, "default_"+name+"_"+uid),
		Labels:       map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.uid": uid},
		Linux: &v1.LinuxPodSandboxConfig{
			SecurityContext: &v1.LinuxSandboxSecurityContext{
				NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}},
		},
	}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

// Container is a container's configuration as the kubelet would send it. Each edit may change it.
func Container(name, image string, command []string, edits ...func(*v1.ContainerConfig)) *v1.ContainerConfig {
	c := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: name},
		Image:    &v1.ImageSpec{Image: image, UserSpecifiedImage: image},
		Command:  command,
		LogPath:  name + "/0.log",
		Labels:   map[string]string{"io.kubernetes.container.name": name},
		Linux: &v1.LinuxContainerConfig{
			Resources: &v1.LinuxContainerResources{},
			SecurityContext: &v1.LinuxContainerSecurityContext{
				NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER},
			},
		},
	}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

// LogLine is one line of a container's log.
type LogLine struct {
	Time   time.Time
	Stream string // stdout or stderr
	Full   bool   // F: the line ends here; P: the next one goes on
	Text   string
}

// ReadLog parses a log file in CRI format. A line that is not in that format is an error.
func ReadLog(path string) ([]LogLine, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseLog(string(data))
}
