package cli

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kubeNode is what the doctor sees of Kubernetes on this machine.
type kubeNode struct {
	root   string // where files are looked for; "" is the machine's own root
	socket string // of Berth
	has    func(program string) bool
}

func thisKubeNode(socket string) kubeNode {
	return kubeNode{socket: socket, has: func(program string) bool {
		_, err := exec.LookPath(program)
		return err == nil
	}}
}

// kubeletFiles may name the socket of a kubelet's runtime. kubeadm keeps the node's own settings in the second, and
// older ones kept the flag in the third.
var kubeletFiles = []string{
	"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/instance-config.yaml", "/var/lib/kubelet/kubeadm-flags.env",
}

const crictlFile = "/etc/crictl.yaml"

// otherSockets are those that crictl and kubeadm look at when they are not told.
var otherSockets = []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock"}

// isNode reports whether the machine is, or becomes, a node of a cluster. k3s and rke2 have a kubelet in them.
func (k kubeNode) isNode() bool { return k.hasKubelet() || k.has("k3s") || k.has("rke2") }

func (k kubeNode) hasKubelet() bool {
	return k.has("kubelet") || slices.ContainsFunc(kubeletFiles, func(name string) bool {
		_, err := os.Stat(k.root + name)
		return err == nil
	})
}

// diagnose looks at the programs of Kubernetes that are there, and at which runtime they ask.
func (k kubeNode) diagnose() (found []diagnosis) {
	if k.hasKubelet() {
		found = append(found, k.kubelet())
	}
	if k.has("crictl") {
		found = append(found, k.crictl())
	}
	if k.has("kubeadm") {
		found = append(found, k.kubeadm())
	}
	return found
}

func (k kubeNode) endpoint() string { return "unix://" + k.socket }

func (k kubeNode) kubelet() diagnosis {
	remedy := fmt.Sprintf("containerRuntimeEndpoint: %s in %s, see docs/kubernetes.md", k.endpoint(), kubeletFiles[0])
	byFlag := func(name string) bool { return filepath.Ext(name) == ".env" }
	flags, files := slices.DeleteFunc(slices.Clone(kubeletFiles), func(name string) bool { return !byFlag(name) }),
		slices.DeleteFunc(slices.Clone(kubeletFiles), byFlag)
	for _, name := range slices.Concat(flags, files) { // a flag goes before the kubelet's configuration file
		asks := kubeletEndpoint(k.root + name)
		if asks == "" {
			continue
		}
		if k.isOurs(asks) {
			return diagnosis{"kubelet", fine, fmt.Sprintf("%s names this socket", name), ""}
		}
		return diagnosis{"kubelet", warning, fmt.Sprintf("%s names another runtime: %s", name, asks), remedy}
	}
	const none = "no file of it names a runtime, so it asks containerd unless a flag says otherwise"
	return diagnosis{"kubelet", warning, none, remedy}
}

var endpointFlag = regexp.MustCompile(`--container-runtime-endpoint[= ]([^\s"]+)`)

// kubeletEndpoint is the socket that a file of a kubelet names for its runtime; "" where it names none.
func kubeletEndpoint(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if filepath.Ext(path) == ".env" {
		if m := endpointFlag.FindSubmatch(text); m != nil {
			return string(m[1])
		}
		return ""
	}
	var c struct {
		Endpoint string `yaml:"containerRuntimeEndpoint"`
	}
	_ = yaml.Unmarshal(text, &c)
	return c.Endpoint
}

// isOurs reports whether an endpoint is Berth's socket. /var/run is a link to /run on every node.
func (k kubeNode) isOurs(endpoint string) bool {
	plain := func(path string) string {
		path = filepath.Clean(strings.TrimPrefix(path, "unix://"))
		if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
			return "/run/" + rest
		}
		return path
	}
	return plain(endpoint) == plain(k.socket)
}

func (k kubeNode) crictl() diagnosis {
	remedy := fmt.Sprintf("crictl config --set runtime-endpoint=%[1]s --set image-endpoint=%[1]s", k.endpoint())
	content, err := os.ReadFile(k.root + crictlFile)
	if absent(err) {
		text := "there is no " + crictlFile + ", so it asks the sockets of other runtimes"
		return diagnosis{"crictl", warning, text, remedy}
	}
	var c struct {
		Runtime string `yaml:"runtime-endpoint"`
		Image   string `yaml:"image-endpoint"`
	}
	if err == nil {
		err = yaml.Unmarshal(content, &c)
	}
	if err != nil {
		return diagnosis{"crictl", warning, fmt.Sprintf("%s is not to be read: %v", crictlFile, err), remedy}
	}
	for _, asks := range []string{c.Runtime, cmp.Or(c.Image, c.Runtime)} {
		if !k.isOurs(asks) {
			text := fmt.Sprintf("%s names another runtime: %s", crictlFile, cmp.Or(asks, "none"))
			return diagnosis{"crictl", warning, text, remedy}
		}
	}
	return diagnosis{"crictl", fine, crictlFile + " names this socket", ""}
}

// kubeadm takes the socket that it finds, and asks which where it finds two; it does not know Berth's.
func (k kubeNode) kubeadm() diagnosis {
	var there []string
	for _, socket := range otherSockets {
		if _, err := os.Stat(k.root + socket); err == nil {
			there = append(there, socket)
		}
	}
	text := "it does not find this socket by itself, and takes containerd's, running or not"
	if len(there) > 0 {
		text = "it does not find this socket by itself, and finds " + strings.Join(there, " and ")
	}
	return diagnosis{"kubeadm", warning, text, fmt.Sprintf(
		"kubeadm init, join and reset with --cri-socket %s, or nodeRegistration.criSocket in its configuration",
		k.endpoint())}
}
