package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/config"
)

func TestKubeNode(t *testing.T) {
	const ours, theirs = "unix:///run/berth/berth.sock", "unix:///run/containerd/containerd.sock"
	all := []string{"kubelet", "crictl", "kubeadm"}
	for _, c := range []struct {
		name     string
		programs []string
		files    map[string]string
		want     map[string]string // the result and a word of each subject
	}{
		{"a machine without Kubernetes", nil, nil, map[string]string{}},
		{"nothing is set", all, nil, map[string]string{
			"kubelet": "warn no file", "crictl": "warn there is no " + crictlFile, "kubeadm": "warn running or not",
		}},
		{"all is as it should be", all[:2], map[string]string{
			kubeletFiles[0]: "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: " + ours + "\n",
			crictlFile:      "runtime-endpoint: unix:///var/run/berth/berth.sock\ntimeout: 2\n",
		}, map[string]string{"kubelet": "ok config.yaml", "crictl": "ok names this socket"}},
		{"a file of kubeadm, without a kubelet on the path", nil, map[string]string{
			kubeletFiles[2]: `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=` + theirs + ` --node-ip=1.2.3.4"` + "\n",
		}, map[string]string{"kubelet": "warn another runtime: " + theirs}},
		{"a flag goes before the file", nil, map[string]string{
			kubeletFiles[0]: "containerRuntimeEndpoint: " + ours + "\n",
			kubeletFiles[2]: `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=` + theirs + `"` + "\n",
		}, map[string]string{"kubelet": "warn another runtime: " + theirs}},
		{"the image service is another's", []string{"crictl"}, map[string]string{
			crictlFile: "runtime-endpoint: " + ours + "\nimage-endpoint: " + theirs + "\n",
		}, map[string]string{"crictl": "warn another runtime: " + theirs}},
		{
			"a file that is none", []string{"crictl"}, map[string]string{crictlFile: "\tx: [\n"},
			map[string]string{"crictl": "warn not to be read"},
		},
		{
			"an empty file", []string{"crictl"}, map[string]string{crictlFile: ""},
			map[string]string{"crictl": "warn another runtime: none"},
		},
		{"two runtimes", []string{"kubeadm"}, map[string]string{
			otherSockets[0]: "", otherSockets[1]: "",
		}, map[string]string{"kubeadm": "warn finds /run/containerd/containerd.sock and /run/crio/crio.sock"}},
	} {
		has := func(program string) bool { return slices.Contains(c.programs, program) }
		k := kubeNode{root: t.TempDir(), socket: "/run/berth/berth.sock", has: has}
		for name, text := range c.files {
			path := k.root + name
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		found := k.diagnose()
		if len(found) != len(c.want) {
			t.Errorf("%s: %+v", c.name, found)
		}
		for _, d := range found {
			result, word, _ := strings.Cut(c.want[d.Subject], " ")
			if d.Result != result || !strings.Contains(d.Text, word) || (d.Result == fine) != (d.Remedy == "") {
				t.Errorf("%s: %+v, want %q", c.name, d, c.want[d.Subject])
			}
			if d.Result != fine && !strings.Contains(d.Remedy, ours) {
				t.Errorf("%s: the remedy of %s does not name the socket: %s", c.name, d.Subject, d.Remedy)
			}
		}
	}
}

// TestNetworkOfACluster: a machine whose network comes later, by a DaemonSet, is none that cannot run pods.
func TestNetworkOfACluster(t *testing.T) {
	none := config.CNI{ConfigDir: t.TempDir()}
	if d := diagnoseNetwork(none, true); len(d) != 1 || d[0].Result != warning {
		t.Errorf("with a kubelet: %+v", d)
	}
	if d := diagnoseNetwork(none, false); len(d) != 1 || d[0].Result != broken {
		t.Errorf("without: %+v", d)
	}
}
