package network

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"berth/internal/annotation"
	"berth/internal/fail"
)

// kubernetesArgs are the CNI_ARGS that network plugins for Kubernetes read.
func kubernetesArgs(p Pod) [][2]string {
	return [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", p.Namespace},
		{"K8S_POD_NAME", p.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
		{"K8S_POD_UID", p.UID},
	}
}

// The forms of the capability arguments, as CNI's conventions define them.
type (
	portMapping struct {
		HostPort      int32  `json:"hostPort"`
		ContainerPort int32  `json:"containerPort"`
		Protocol      string `json:"protocol"`
		HostIP        string `json:"hostIP,omitempty"`
	}
	bandwidth struct {
		IngressRate  uint64 `json:"ingressRate,omitempty"`
		IngressBurst uint64 `json:"ingressBurst,omitempty"`
		EgressRate   uint64 `json:"egressRate,omitempty"`
		EgressBurst  uint64 `json:"egressBurst,omitempty"`
	}
	dns struct {
		Servers  []string `json:"servers,omitempty"`
		Searches []string `json:"searches,omitempty"`
		Options  []string `json:"options,omitempty"`
	}
)

// capabilities are all arguments that plugins may get for this pod. Each plugin is given those that it declares.
func capabilities(p Pod) (map[string]json.RawMessage, error) {
	all := map[string]any{}
	if ports := portMappings(p); len(ports) > 0 {
		all["portMappings"] = ports
	}
	rates, err := bandwidthOf(p)
	if err != nil {
		return nil, err
	}
	if rates != (bandwidth{}) {
		all["bandwidth"] = rates
	}
	if len(p.DNS.Servers)+len(p.DNS.Searches)+len(p.DNS.Options) > 0 {
		all["dns"] = dns(p.DNS)
	}
	if p.CgroupPath != "" {
		all["cgroupPath"] = p.CgroupPath
	}
	if len(p.Annotations) > 0 {
		all["io.kubernetes.cri.pod-annotations"] = p.Annotations
	}
	if err := addressing(p, all); err != nil {
		return nil, err
	}
	encoded := map[string]json.RawMessage{}
	for name, value := range all {
		if encoded[name], err = json.Marshal(value); err != nil {
			return nil, fmt.Errorf("capability %s: %w", name, err)
		}
	}
	return encoded, nil
}

func portMappings(p Pod) []portMapping {
	var ports []portMapping
	for _, m := range p.Ports {
		if m.HostPort <= 0 {
			continue
		}
		protocol := strings.ToLower(m.Protocol)
		if protocol == "" {
			protocol = "tcp"
		}
		ports = append(ports, portMapping{m.HostPort, m.ContainerPort, protocol, m.HostIP})
	}
	return ports
}

// asked are the capabilities that a pod has only if somebody asks for them: by a host port, or by an annotation. The
// others go along with every pod.
var asked = []string{"bandwidth", "infinibandGUID", "ips", "mac", "portMappings"}

// warnUnmet tells of each capability that a pod asks for and that no plugin of the network declares. Some
// networks do it all the same, without CNI: Cilium reads a pod's annotations and host ports from the API. The value is
// clipped, since a pod's ports may be hundreds of kilobytes, and the kubelet tries again and again.
func warnUnmet(log *slog.Logger, conf *netconf, p Pod, capabilities map[string]json.RawMessage) {
	for _, name := range asked {
		if capabilities[name] != nil && !conf.can(name) {
			log.Warn("no plugin of its network declares the capability that a pod asks for: nothing comes of it, unless the "+
				"network does that by itself, as Cilium may",
				"capability", name, "wanted", fail.Clip(string(capabilities[name])), "pod", p.ID, "name", p.Namespace+"/"+p.Name,
				"network", conf.Name, "file", conf.File)
		}
	}
}

// addressing adds what annotations ask for in addresses.
func addressing(p Pod, all map[string]any) error {
	ips, err := annotation.IPs(p.Annotations)
	if err != nil {
		return err
	}
	if len(ips) > 0 {
		all["ips"] = ips
	}
	mac, err := annotation.MAC(p.Annotations)
	if err != nil {
		return err
	}
	if mac != "" {
		all["mac"] = mac
	}
	if guid := annotation.InfinibandGUID(p.Annotations); guid != "" {
		all["infinibandGUID"] = guid
	}
	return nil
}

// unlimitedBurst is what Kubernetes' runtimes give plugins for a burst, which no annotation sets.
const unlimitedBurst = math.MaxUint32

func bandwidthOf(p Pod) (b bandwidth, err error) {
	if b.IngressRate, err = annotation.Ingress(p.Annotations); err != nil {
		return b, err
	}
	if b.EgressRate, err = annotation.Egress(p.Annotations); err != nil {
		return b, err
	}
	if b.IngressRate > 0 {
		b.IngressBurst = unlimitedBurst
	}
	if b.EgressRate > 0 {
		b.EgressBurst = unlimitedBurst
	}
	return b, nil
}
