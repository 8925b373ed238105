package cli

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestStartAgain stops and starts a pod of two containers, restarts one of them, and looks at what there is then.
func TestStartAgain(t *testing.T) {
	d, logs := runnable(t)
	d.behave = func(l *life) int32 { l.log("stdout", "F", "x"); <-l.stop; return 0 }
	do := func(args ...string) {
		t.Helper()
		if _, errs, code := d.berth(t, args...); code != 0 {
			t.Fatalf("%v: code %d, %q", args, code, errs)
		}
	}
	stopped := func() { // the fake stops its containers a moment later
		until(func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, c := range d.containers {
				if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
					return false
				}
			}
			return true
		})
	}
	do("run", "-d", "--log-dir", logs, "--name", "web", "-e", "A=b", "img:1")
	do("run", "-d", "--pod", "web", "--name", "side", "img:1")
	do("start", "web") // both run already
	if len(d.requests) != 2 {
		t.Errorf("%d containers were made", len(d.requests))
	}
	do("stop", "web")
	stopped()
	do("start", "web")
	if len(d.pods) != 1 || d.pods[0].Metadata.Attempt != 1 || len(d.containers) != 2 {
		t.Fatalf("pods %v, containers %v", d.pods, d.containers)
	}
	for _, c := range d.containers {
		r := d.requests[c.Id]
		if r.Metadata.Attempt != 1 || r.LogPath != r.Metadata.Name+"_1.log" || r.Metadata.Name == "web" && len(r.Envs) != 1 {
			t.Errorf("container %v", r)
		}
	}
	do("stop", "side")
	until(func() bool { out, _, _ := d.berth(t, "ps", "-q"); return len(strings.Fields(out)) == 1 })
	do("start", "side") // alone, in the same pod
	if len(d.pods) != 1 || d.pods[0].Metadata.Attempt != 1 || len(d.containers) != 3 {
		t.Errorf("pods %v, containers %v", d.pods, d.containers)
	}
	if out, _, _ := d.berth(t, "logs", "-p", "side"); out != "x\n" {
		t.Errorf("the log of the attempt before: %q", out)
	}
	if out, _, _ := d.berth(t, "ps", "--name", "side"); !strings.Contains(out, " 2 ") {
		t.Errorf("restarts: %s", out)
	}
	do("rm", "-f", "web/side") // and the attempt before, with which its restart policy would go on
	for _, c := range d.containers {
		if c.Metadata.Name == "side" {
			t.Errorf("after rm -f there is %v", c)
		}
	}
	do("rm", "-f", "web")
	left, err := os.ReadDir(logs) // which somebody chose, and made perhaps
	if err != nil || len(left) != 0 || len(d.pods) != 0 {
		t.Errorf("logs %v, %v, pods %v", left, err, d.pods)
	}
	d.addPod(id("aa"), "kube", "default")
	d.addContainer(id("ca"), id("aa"), "main", 0, runtimeapi.ContainerState_CONTAINER_EXITED)
	for _, args := range []string{"start main", "restart kube"} {
		if _, errs, code := d.berth(t, strings.Fields(args)...); code != 2 || !strings.Contains(errs, "is not of berth run") {
			t.Errorf("%s: code %d, %q", args, code, errs)
		}
	}
}

// TestStartThatFails has a container that cannot be made anew: the pod is afterwards as it was before, and can be
// named.
func TestStartThatFails(t *testing.T) {
	d, logs := runnable(t)
	if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "img:1"); code != 0 {
		t.Fatal(errs)
	}
	until(func() bool { out, _, _ := d.berth(t, "ps", "-q"); return out == "" })
	d.berth(t, "stop", "web")
	d.refuse["CreateContainer"] = status.Error(codes.NotFound, "no such image: pull it first")
	for range 2 {
		if _, errs, code := d.berth(t, "start", "web"); code != 3 ||
			errs != "berth: start container web anew: no such image: pull it first: berth pull img:1\n" {
			t.Errorf("code %d, %q", code, errs)
		}
		if len(d.pods) != 1 || d.pods[0].Metadata.Attempt != 0 {
			t.Fatalf("pods %v", d.pods)
		}
	}
	delete(d.refuse, "CreateContainer")
	if _, errs, code := d.berth(t, "start", "web"); code != 0 {
		t.Error(errs)
	}
}

// TestTwoSandboxesOfAPod has a pod of which a start did not come to its end: both its sandboxes are there, and its name
// still means it.
func TestTwoSandboxesOfAPod(t *testing.T) {
	for _, made := range []string{"no container", "one of two"} {
		d, logs := runnable(t)
		for _, args := range [][]string{{"--log-dir", logs, "--name", "web"}, {"--pod", "web", "--name", "side"}} {
			if _, errs, code := d.berth(t, append(append([]string{"run", "-d"}, args...), "img:1")...); code != 0 {
				t.Fatal(errs)
			}
		}
		until(func() bool { out, _, _ := d.berth(t, "ps", "-q"); return out == "" })
		d.berth(t, "stop", "web")
		next := proto.Clone(d.configs[d.pods[0].Id]).(*runtimeapi.PodSandboxConfig)
		next.Metadata.Attempt++
		pod, err := d.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: next})
		if err != nil {
			t.Fatal(err)
		}
		if made == "one of two" {
			d.addContainer(id("cc"), pod.PodSandboxId, "web", 1, runtimeapi.ContainerState_CONTAINER_EXITED)
			m := &runtimeapi.ContainerMetadata{Name: "web", Attempt: 1}
			d.requests[id("cc")] = &runtimeapi.ContainerConfig{Metadata: m}
		}
		for _, args := range []string{"stop web", "inspect --type pod web", "start web", "rm -f web"} {
			if _, errs, code := d.berth(t, strings.Fields(args)...); code != 0 {
				t.Errorf("%s, %s: code %d, %q", made, args, code, errs)
			}
		}
		if len(d.pods) != 0 || len(d.containers) != 0 {
			t.Errorf("%s: pods %v, containers %v", made, d.pods, d.containers)
		}
	}
}

// TestRmOfAnEarlierSandbox names the old sandbox of a pod that runs in a newer one: that runs, and is refused.
func TestRmOfAnEarlierSandbox(t *testing.T) {
	d, logs := runnable(t)
	if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "img:1"); code != 0 {
		t.Fatal(errs)
	}
	until(func() bool { out, _, _ := d.berth(t, "ps", "-q"); return out == "" })
	d.berth(t, "stop", "web")
	old := d.pods[0].Id
	next := proto.Clone(d.configs[old]).(*runtimeapi.PodSandboxConfig)
	next.Metadata.Attempt++
	pod, err := d.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: next})
	if err != nil {
		t.Fatal(err)
	}
	d.addContainer(id("cc"), pod.PodSandboxId, "web", 1, runtimeapi.ContainerState_CONTAINER_RUNNING)
	for _, word := range []string{old, "web"} {
		if _, errs, code := d.berth(t, "rm", word); code != 1 || !strings.Contains(errs, "runs; stop it first") {
			t.Errorf("rm %s: code %d, %q", word, code, errs)
		}
		if len(d.pods) != 2 || len(d.containers) != 2 {
			t.Fatalf("rm %s left pods %v, containers %v", word, d.pods, d.containers)
		}
	}
	if _, errs, code := d.berth(t, "rm", "-f", old); code != 0 || len(d.pods) != 0 {
		t.Errorf("rm -f: code %d, %q, pods %v", code, errs, d.pods)
	}
}

// TestStartThatComesSecond has the daemon start the pod again at the same time: the sandbox that berth start is given
// is the daemon's, with a container in it, and stays.
func TestStartThatComesSecond(t *testing.T) {
	d, logs := runnable(t)
	if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "img:1"); code != 0 {
		t.Fatal(errs)
	}
	until(func() bool { out, _, _ := d.berth(t, "ps", "-q"); return out == "" })
	d.berth(t, "stop", "web")
	d.before = func(name string) {
		if name == "CreateContainer" {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.addContainer(id("cc"), d.pods[len(d.pods)-1].Id, "web", 1, runtimeapi.ContainerState_CONTAINER_RUNNING)
		}
	}
	d.refuse["CreateContainer"] = status.Error(codes.AlreadyExists, "container web (attempt 1) exists already")
	if _, errs, code := d.berth(t, "start", "web"); code == 0 || !strings.Contains(errs, "exists already") {
		t.Errorf("code %d, %q", code, errs)
	}
	if d.called("RemovePodSandbox") || d.container(id("cc")) == nil {
		t.Errorf("pods %v, containers %v", d.pods, d.containers)
	}
}
