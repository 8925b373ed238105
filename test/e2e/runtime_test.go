package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

func TestVersion(t *testing.T) {
	each(t, func(r rig) {
		got, err := r.n.Runtime.Version(ctx(), "v1")
		r.ok(err)
		if got.RuntimeName != "berth" || got.RuntimeApiVersion != "v1" || got.Version == "" {
			r.Errorf("version %v", got)
		}
		var major, minor, patch int
		if _, err := fmt.Sscanf(strings.TrimPrefix(got.RuntimeVersion, "v"), "%d.%d.%d", &major, &minor, &patch); err != nil {
			r.Errorf("a kubelet reads no version in %s: %v", got.RuntimeVersion, err)
		}
	})
}

func condition(st *v1.StatusResponse, kind string) *v1.RuntimeCondition {
	for _, c := range st.GetStatus().GetConditions() {
		if c.Type == kind {
			return c
		}
	}
	return &v1.RuntimeCondition{Message: "no condition " + kind}
}

func TestStatus(t *testing.T) {
	each(t, func(r rig) {
		st, err := r.n.Runtime.Status(ctx(), false)
		r.ok(err)
		for _, kind := range []string{"RuntimeReady", "NetworkReady"} {
			if c := condition(st, kind); !c.Status {
				r.Errorf("%s: %s %s", kind, c.Reason, c.Message)
			}
		}
		if len(st.Info) != 0 {
			r.Errorf("info without verbose: %v", st.Info)
		}
		verbose, err := r.n.Runtime.Status(ctx(), true)
		r.ok(err)
		r.wantJSON(verbose.Info)
		var network struct {
			Name                  string
			Plugins, Capabilities []string
		}
		r.ok(json.Unmarshal([]byte(verbose.Info["network"]), &network))
		if network.Name == "" || len(network.Plugins) == 0 || !slices.Contains(network.Capabilities, "portMappings") {
			r.Errorf("the network in force: %+v", network)
		}
		names := []string{}
		for _, h := range st.RuntimeHandlers {
			names = append(names, h.Name)
		}
		if !strings.Contains(strings.Join(names, " "), "runc") && !strings.Contains(strings.Join(names, " "), "crun") {
			r.Errorf("handlers %q", names)
		}
	})
}

// wantJSON checks the map that verbose requests get: not empty, and each value either plain text or valid JSON.
func (r rig) wantJSON(info map[string]string) {
	r.Helper()
	if len(info) == 0 {
		r.Error("verbose gave no info")
	}
	for key, value := range info {
		if strings.HasPrefix(strings.TrimSpace(value), "{") && !json.Valid([]byte(value)) {
			r.Errorf("info %q is not JSON: %s", key, value)
		}
	}
}

func TestRuntimeConfig(t *testing.T) {
	each(t, func(r rig) {
		got, err := r.n.Runtime.RuntimeConfig(ctx())
		r.ok(err)
		want := v1.CgroupDriver_CGROUPFS
		if node.GroupsOf(r.n).Systemd {
			want = v1.CgroupDriver_SYSTEMD
		}
		if got.GetLinux().GetCgroupDriver() != want {
			r.Errorf("cgroup driver %v, wanted %v", got.GetLinux(), want)
		}
	})
}

func podCIDR(cidr string) *v1.RuntimeConfig {
	return &v1.RuntimeConfig{NetworkConfig: &v1.NetworkConfig{PodCidr: cidr}}
}

func TestPodCIDRWithoutTemplate(t *testing.T) {
	r := ownNode(t, node.Options{Runtime: runtimes()[0]})
	before := list(r, r.n.CNI)
	r.ok(r.n.Runtime.UpdateRuntimeConfig(ctx(), podCIDR("10.99.0.0/24")))
	if after := list(r, r.n.CNI); after != before {
		r.Errorf("without a template, the configuration folder changed from %q to %q", before, after)
	}
	r.wantCode(r.n.Runtime.UpdateRuntimeConfig(ctx(), podCIDR("10.99.0.0/99")), codes.InvalidArgument, "10.99.0.0/99")
	r.wantCode(r.n.Runtime.UpdateRuntimeConfig(ctx(), podCIDR("pods")), codes.InvalidArgument, "pods")
}

func list(r rig, dir string) string {
	r.Helper()
	entries, err := os.ReadDir(dir)
	r.ok(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestDropIns(t *testing.T) {
	for _, c := range []struct {
		name, text string
		words      []string
	}{
		{"unknown key", "[cni]\nconfig_dri = \"/x\"\n", []string{"config_dri", "bad.toml", "2"}},
		{"wrong type", "[cni]\n\nplugin_dirs = 7\n", []string{"plugin_dirs", "bad.toml", "3"}},
		{"impossible value", "[runtimes]\ndefault = \"nonesuch\"\n", []string{"nonesuch"}},
		{"not TOML", "[cni\n", []string{"bad.toml", "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := ownNode(t, node.Options{Runtime: runtimes()[0]})
			r.ok(r.n.Stop())
			dir := r.n.Dir + "/conf.d"
			r.ok(os.MkdirAll(dir, 0o755))
			r.ok(os.WriteFile(dir+"/bad.toml", []byte(c.text), 0o644))
			err := r.n.Start()
			if err == nil {
				r.Fatal("the daemon started with a bad configuration")
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					r.Errorf("the refusal does not name %q: %v", w, err)
				}
			}
			r.ok(os.RemoveAll(dir))
			r.ok(r.n.Start())
		})
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	r := ownNode(t, node.Options{Runtime: runtimes()[0]})
	out, cmd := new(strings.Builder), r.n.Command("serve", "--config", r.n.Config, "--root", r.n.Root,
		"--state", r.n.State, "--socket", r.n.Dir+"/other.sock")
	cmd.Stdout, cmd.Stderr = out, out
	err := r.n.Space.Run(cmd)
	if err == nil || !strings.Contains(out.String(), r.n.Root) {
		r.Errorf("a second daemon on the same root ended with %v and said: %s", err, out)
	}
	if _, err := r.n.Runtime.Version(ctx(), "v1"); err != nil {
		r.Errorf("the first daemon was harmed: %v", err)
	}
}

func TestSocketIsForRootAlone(t *testing.T) {
	each(t, func(r rig) {
		info, err := os.Stat(r.n.Socket)
		r.ok(err)
		if info.Mode().Perm() != 0o600 {
			r.Errorf("socket mode %v", info.Mode())
		}
	})
}
