package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// serving starts the web server in a pod and returns when it answers.
func (p *pod) serving() *ctr {
	p.Helper()
	p.pull("web:latest")
	c := p.start(node.Container("web", ref("web:latest"), nil))
	c.logged("listening")
	return c
}

func TestPodIsReachable(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		p.serving()
		page, err := r.n.Get("http://" + p.ip() + ":8080/")
		if err != nil || !strings.Contains(page, "This is request 1.") {
			r.Errorf("page %q, %v", page, err)
		}
		other := r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "2" })
		page = other.output(busybox("client", "wget -q -O - http://"+p.ip()+":8080/"))
		if !strings.Contains(page, "This is request 2.") {
			r.Errorf("from another pod: %q", page)
		}
		r.wantText("loopback", other.output(busybox("lo", "ip addr show lo | grep -c 'inet 127.0.0.1/8'")), "1")
	})
}

func TestHostPort(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(func(c *v1.PodSandboxConfig) {
			c.PortMappings = []*v1.PortMapping{{Protocol: v1.Protocol_TCP, HostPort: 18080, ContainerPort: 8080}}
		})
		p.serving()
		page, err := r.n.Get("http://10.88.0.1:18080/")
		if err != nil || !strings.Contains(page, "Hello from") {
			r.Errorf("through the host port: %q, %v", page, err)
		}
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		if _, err := r.n.Get("http://10.88.0.1:18080/"); err == nil {
			r.Error("the host port still answers after the pod stopped")
		}
	})
}

const dualStack = `{"cniVersion":"1.0.0","name":"bt","plugins":[
 {"type":"bridge","bridge":"bt0","isGateway":true,
  "ipam":{"type":"host-local","dataDir":"%[1]s","ranges":[[{"subnet":"10.89.0.0/16"}],[{"subnet":"fd00:89::/64"}]]}}]}`

func TestBothAddressFamilies(t *testing.T) {
	r := ownNode(t, node.Options{Runtime: runtimes()[0], Network: dualStack})
	r.pull("busybox:latest")
	p := r.pod()
	network := p.status().GetNetwork()
	more := network.GetAdditionalIps()
	if !strings.HasPrefix(network.GetIp(), "10.89.") || len(more) != 1 ||
		!strings.HasPrefix(more[0].GetIp(), "fd00:89::") {
		r.Errorf("network %v", network)
	}
}

func (r rig) networkReady() *v1.RuntimeCondition {
	r.Helper()
	st, err := r.n.Runtime.Status(ctx(), false)
	r.ok(err)
	return condition(st, "NetworkReady")
}

// TestNetworkConfigurationIsWatched changes the configuration in every way that tools do, and wants Status to follow.
func TestNetworkConfigurationIsWatched(t *testing.T) {
	r := ownNode(t, node.Options{Runtime: runtimes()[0]})
	file := r.n.CNI + "/10-bt.conflist"
	good, err := os.ReadFile(file)
	r.ok(err)
	for _, c := range []struct {
		name  string
		do    func() error
		ready bool
		says  string
	}{
		{"removed", func() error { return os.Remove(file) }, false, r.n.CNI},
		{"atomic replace", func() error {
			return firstError(os.WriteFile(file+".tmp", good, 0o644), os.Rename(file+".tmp", file))
		}, true, ""},
		{"half written", func() error { return os.WriteFile(file, good[:len(good)/2], 0o644) }, false, "10-bt.conflist"},
		{"written to its end", func() error { return os.WriteFile(file, good, 0o644) }, true, ""},
		{"names a missing plugin", func() error {
			return os.WriteFile(file, []byte(`{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"nonesuch"}]}`), 0o644)
		}, false, "nonesuch"},
		{"mended", func() error { return os.WriteFile(file, good, 0o644) }, true, ""},
		{"folder removed", func() error { return os.RemoveAll(r.n.CNI) }, false, r.n.CNI},
		{"folder back", func() error {
			return firstError(os.Mkdir(r.n.CNI, 0o755), os.WriteFile(file, good, 0o644))
		}, true, ""},
	} {
		r.ok(c.do())
		var last *v1.RuntimeCondition
		deadline := time.Now().Add(timeouts.For(30 * time.Second))
		for {
			last = r.networkReady()
			if last.Status == c.ready && strings.Contains(last.Message, c.says) || time.Now().After(deadline) {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if last.Status != c.ready || !strings.Contains(last.Message, c.says) {
			r.Fatalf("%s: ready %v, %s: %s; wanted %v and a message that names %q", c.name, last.Status, last.Reason,
				last.Message, c.ready, c.says)
		}
		if !c.ready && (last.Reason == "" || last.Message == "") {
			r.Errorf("%s: not ready without a reason: %v", c.name, last)
		}
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestNoNetwork checks that without a network only pods that need one are refused.
func TestNoNetwork(t *testing.T) {
	r := ownNode(t, node.Options{Runtime: runtimes()[0]})
	r.ok(os.Remove(r.n.CNI + "/10-bt.conflist"))
	r.eventually("the network is not ready", func() bool { return !r.networkReady().Status })
	_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("lonely"), "")
	if err == nil || !strings.Contains(err.Error(), r.n.CNI) {
		r.Errorf("without a network, a pod gave %v", err)
	}
	r.pod(hostNetwork)
	r.wantPods(1)
}

func (r rig) wantPods(n int) {
	r.Helper()
	pods, err := r.n.Runtime.ListPodSandbox(ctx(), nil)
	r.ok(err)
	if len(pods) != n {
		r.Errorf("%d pods are listed, wanted %d: %v", len(pods), n, pods)
	}
}

// slowPlugin is a CNI plugin whose ADD hangs while the file hang exists. It leaves a child that holds its pipes.
const slowPlugin = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
ADD)
	echo add >>%[1]s/calls
	while [ -e %[1]s/hang ]; do sleep 7777 & wait; done
	echo '{"cniVersion":"1.0.0","ips":[{"address":"10.90.0.2/24"}]}' ;;
DEL) echo del >>%[1]s/calls ;;
esac
`

func slowNode(t *testing.T) (r rig, dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bt-plugin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r = ownNode(t, node.Options{
		Runtime: runtimes()[0], Network: `{"cniVersion":"1.0.0","name":"slow","plugins":[{"type":"slow"}]}`,
		Plugins: []string{dir},
	})
	r.ok(os.WriteFile(dir+"/slow", fmt.Appendf(nil, slowPlugin, dir), 0o755))
	r.eventually("the network is ready", func() bool { return r.networkReady().Status })
	r.ok(os.WriteFile(dir+"/hang", nil, 0o644))
	return r, dir
}

func calls(dir string) string {
	data, _ := os.ReadFile(filepath.Join(dir, "calls"))
	return strings.Join(strings.Fields(string(data)), " ")
}

// TestHangingPlugin checks that a hanging plugin holds up nobody else, that asking again joins the first request, and
// that a stop takes over and leaves no process.
func TestHangingPlugin(t *testing.T) {
	r, dir := slowNode(t)
	config := r.n.Pod("stuck")
	short, cancel := context.WithTimeout(ctx(), timeouts.For(500*time.Millisecond))
	defer cancel()
	_, err := r.n.Runtime.RunPodSandbox(short, config, "")
	r.wantCode(err, codes.DeadlineExceeded)
	pluginSleeps(r)
	began := time.Now()
	r.pod(hostNetwork)
	r.wantPods(1)
	if took := time.Since(began); took > timeouts.For(30*time.Second) {
		r.Errorf("beside a hanging plugin, another pod took %s", took)
	}
	answer := make(chan error, 1)
	go func() {
		id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
		if err == nil {
			err = firstError(r.n.Runtime.StopPodSandbox(ctx(), id), r.n.Runtime.RemovePodSandbox(ctx(), id))
		}
		answer <- err
	}()
	time.Sleep(timeouts.For(100 * time.Millisecond))
	if got := calls(dir); got != "add" {
		r.Errorf("the plugin was called: %s; the second request should have joined the first", got)
	}
	hanging := pluginSleeps(r)
	r.ok(os.Remove(dir + "/hang"))
	for pid := range hanging {
		r.ok(killProcess(pid)) // the plugin goes on when its child ends
	}
	r.ok(<-answer)
	if got := calls(dir); got != "add del" && got != "add del del" {
		r.Errorf("the plugin was called: %s", got)
	}
}

// pluginSleeps finds the processes that the slow plugin started for this node, once it hangs.
func pluginSleeps(r rig) map[int]bool {
	r.Helper()
	found := map[int]bool{}
	r.eventually("the hanging plugin runs in a cgroup of this node", func() bool {
		for _, pid := range processesIn(r.n.Instance, "sleep 7777") {
			found[pid] = true
		}
		return len(found) > 0
	})
	return found
}

// TestKilledInTheMiddleOfAdd kills the daemon while a plugin hangs: the plugin must be gone before the request is made
// again, and its DEL must have come after its ADD.
func TestKilledInTheMiddleOfAdd(t *testing.T) {
	r, dir := slowNode(t)
	config := r.n.Pod("stuck")
	short, cancel := context.WithTimeout(ctx(), timeouts.For(500*time.Millisecond))
	defer cancel()
	_, err := r.n.Runtime.RunPodSandbox(short, config, "")
	r.wantCode(err, codes.DeadlineExceeded)
	pluginSleeps(r)
	r.ok(r.n.Restart())
	r.eventually("the orphaned plugin is gone", func() bool { return len(processesIn(r.n.Instance, "sleep 7777")) == 0 })
	r.ok(os.Remove(dir + "/hang"))
	id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
	r.ok(err)
	r.ok(r.n.Runtime.StopPodSandbox(ctx(), id))
	r.ok(r.n.Runtime.RemovePodSandbox(ctx(), id))
	got := calls(dir)
	if !strings.HasPrefix(got, "add del") || !strings.HasSuffix(got, "add del") {
		r.Errorf("the plugin was called: %s", got)
	}
}

// TestFailingPlugin checks that a plugin's own words reach the user, and that nothing is left.
func TestFailingPlugin(t *testing.T) {
	r, dir := slowNode(t)
	script := "case $CNI_COMMAND in VERSION) echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}' ;;\n" +
		"ADD) echo '{\"cniVersion\":\"1.0.0\",\"code\":100,\"msg\":\"the cable is cut\"}'; exit 1 ;; esac"
	r.script(dir, "slow", script)
	_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("cut"), "")
	if err == nil || !strings.Contains(err.Error(), "the cable is cut") {
		r.Errorf("the error does not say what the plugin said: %v", err)
	}
	r.wantPods(0)
	r.ok(r.n.Clean(timeouts.For(30 * time.Second)))
}

// TestMendedNetwork has IPAM refuse the subnet of the network, as after a slip of the pen. A pod that could not be
// attached goes once the file is mended.
func TestMendedNetwork(t *testing.T) {
	r := ownNode(t, node.Options{Runtime: runtimes()[0]})
	r.pod() // where the first ADD on a new bridge has failed, so does the next one of Debian's plugin 1.1.1
	file := r.n.CNI + "/10-bt.conflist"
	good, err := os.ReadFile(file)
	r.ok(err)
	configure := func(text string) {
		r.ok(os.Remove(file))
		r.eventually("the network is not ready", func() bool { return !r.networkReady().Status })
		r.ok(os.WriteFile(file, []byte(text), 0o644))
		r.eventually("the network is ready", func() bool { return r.networkReady().Status })
	}
	configure(strings.Replace(string(good), "10.88.0.0/16", "10.1.2.3/32", 1))
	_, err = r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("typo"), "")
	if err == nil || !strings.Contains(err.Error(), "too small") ||
		!strings.Contains(err.Error(), "configuration, mend that") {
		r.Errorf("the error does not say what to do: %v", err)
	}
	attached := func() int {
		records, err := filepath.Glob(r.n.Root + "/cni/[0-9a-f]*")
		r.ok(err)
		return len(records)
	}
	if n := attached(); n != 2 {
		r.Errorf("%d attachments are recorded, wanted 2", n)
	}
	configure(string(good))
	r.eventually("the pod is detached", func() bool { return attached() == 1 })
	r.pod()
}
