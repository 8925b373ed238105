package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
)

// TestUnreadableRecordKeepsLayers makes the record of a pod unreadable while its container runs, and removes an image
// that the container has mounted: the layers stay beneath it, also where nothing but the record would say which they
// are.
func TestUnreadableRecordKeepsLayers(t *testing.T) {
	own(t, func(r rig) {
		r.sub("with-identity", func(r rig) { r.unreadable(true) })
		r.sub("without", func(r rig) { r.unreadable(false) })
	})
}

// unreadable runs a container that has an image mounted, and replaces the record of its pod by one that a later release
// could have written, with and without the file that is for such a case.
func (r rig) unreadable(identity bool) {
	r.Helper()
	image := r.repository() + ":v1"
	r.push(image, r.small(fixture.Recipe{}, []fixture.File{{Name: "precious", Body: []byte("still there\n")}}))
	p := r.pod()
	id := r.imageID(image)
	running := p.start(busybox("main", "exec sleep 4711", imageMount(id, "/v")))
	pid := running.pid("sleep 4711")
	dir := filepath.Join(r.n.Root, "pods", p.id)
	r.ok(r.n.Stop())
	restore := map[string][]byte{}
	take := func(name string) {
		was, err := os.ReadFile(filepath.Join(dir, name))
		r.ok(err)
		r.ok(os.Remove(filepath.Join(dir, name)))
		restore[name] = was
	}
	take("record")
	r.ok(os.WriteFile(filepath.Join(dir, "record"), []byte("berth-record pod v99 sha256=00 len=0\n"), 0o600))
	if !identity {
		take("identity")
	}
	r.ok(r.n.Start())
	r.ok(r.n.Images.RemoveImage(ctx(), &v1.ImageSpec{Image: id}))
	got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/v/precious", pid))
	if err != nil || string(got) != "still there\n" {
		r.Errorf("a layer was removed beneath a container that runs: %q, %v", got, err)
	}
	r.ok(r.n.Stop())
	for name, was := range restore { // mended by hand
		r.ok(os.WriteFile(filepath.Join(dir, name), was, 0o600))
	}
	r.ok(r.n.Start())
	p.remove()
}

// TestUnreadableRecordKeepsThePod damages records in each way while their containers run: a kubelet is told of them,
// cannot make them twice, and can stop, remove and then replace them, while the pods beside them are as they were.
func TestUnreadableRecordKeepsThePod(t *testing.T) {
	damage := map[string]func(record string) error{
		"flipped": func(record string) error {
			text, err := os.ReadFile(record)
			if err != nil {
				return err
			}
			text[len(text)/2] ^= 4
			return os.WriteFile(record, text, 0o600)
		},
		"newer": func(record string) error {
			return os.WriteFile(record, []byte("berth-record pod v99 sha256=00 len=0\n"), 0o600)
		},
		"gone":    os.Remove,
		"healthy": func(string) error { return nil },
	}
	own(t, func(r rig) {
		pods, pids := map[string]*pod{}, map[string]int{}
		for kind := range damage {
			edits := []func(*v1.PodSandboxConfig){func(c *v1.PodSandboxConfig) { c.Metadata.Name = "pod-" + kind }}
			if kind == "newer" {
				edits = append(edits, inUserns)
			}
			p := r.pod(edits...)
			pods[kind] = p
			pids[kind] = p.start(busybox("main", "exec sleep 47"+fmt.Sprint(len(pods)), p.like())).pid("sleep 47")
		}
		r.ok(r.n.Kill9())
		for kind, do := range damage {
			r.ok(do(filepath.Join(r.n.Root, "pods", pods[kind].id, "record")))
		}
		r.ok(r.n.Start())
		status, err := r.n.Runtime.Status(ctx(), false)
		r.ok(err)
		for _, c := range status.Status.Conditions {
			if c.Type == v1.RuntimeReady && !c.Status {
				r.Errorf("the runtime is not ready: %v", c)
			}
		}
		lives := func(kind string) bool { return syscall.Kill(pids[kind], 0) == nil }
		for kind, p := range pods {
			want := v1.PodSandboxState_SANDBOX_NOTREADY
			if kind == "healthy" {
				want = v1.PodSandboxState_SANDBOX_READY
			}
			list, err := r.n.Runtime.ListPodSandbox(ctx(), &v1.PodSandboxFilter{Id: p.id})
			r.ok(err)
			if len(list) != 1 || list[0].State != want || list[0].Metadata.Name != "pod-"+kind {
				r.Errorf("%s: the list has %v, wanted it %v", kind, list, want)
			}
			if got := p.status(); got.State != want || got.Metadata.Uid != p.config.Metadata.Uid {
				r.Errorf("%s: its status is %v", kind, got)
			}
			if !lives(kind) {
				r.Errorf("%s: its container has ended", kind)
			}
			if kind == "healthy" {
				continue
			}
			for range 2 { // its own request again, and that of the next attempt
				_, err = r.n.Runtime.RunPodSandbox(ctx(), p.config, "")
				r.wantCode(err, codes.Unavailable, p.id, "record")
				p.config.Metadata.Attempt++
			}
		}
		next := r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name = "pod-other" })
		r.wantText("a pod beside them", next.output(busybox("main", "echo ran")), "ran")

		r.ok(r.n.Runtime.StopPodSandbox(ctx(), pods["flipped"].id))
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), pods["newer"].id))
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), pods["gone"].id))
		for _, kind := range []string{"flipped", "gone"} {
			all, err := r.n.Runtime.ListContainers(ctx(), &v1.ContainerFilter{PodSandboxId: pods[kind].id})
			r.ok(err)
			if len(all) != 1 {
				r.Errorf("%s: %d containers are listed once it is stopped, wanted 1", kind, len(all))
			}
			for _, c := range all {
				// A kubelet that cannot use one container's status tells its API server nothing more of the pod.
				if _, err := r.n.Runtime.ContainerStatus(ctx(), c.Id, false); err != nil {
					r.Errorf("%s: a kubelet cannot use what is known of its container: %v", kind, err)
				}
			}
		}
		r.ok(r.n.Restart())
		for kind, p := range pods {
			if kind == "healthy" {
				continue
			}
			if lives(kind) {
				r.Errorf("%s: it was stopped, and its container runs", kind)
			}
			again := r.pod(func(c *v1.PodSandboxConfig) { c.Metadata = p.config.Metadata })
			r.wantText("the next attempt of it", again.output(busybox("main", "echo ran")), "ran")
			p.remove()
		}
		if !lives("healthy") {
			r.Error("the healthy pod has lost its container")
		}
	})
}

// TestPodWithoutName has a pod run of which neither record nor identity can be read: the runtime is not ready, since a
// kubelet would make the pod once more.
func TestPodWithoutName(t *testing.T) {
	own(t, func(r rig) {
		p := r.pod()
		p.start(busybox("main", "exec sleep 4713")).pid("sleep 4713")
		dir := filepath.Join(r.n.Root, "pods", p.id)
		r.ok(r.n.Kill9())
		was := map[string][]byte{}
		for _, name := range []string{"record", "identity"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			r.ok(err)
			was[name] = text
			r.ok(os.WriteFile(filepath.Join(dir, name), []byte("nothing that anybody can read"), 0o600))
		}
		r.ok(r.n.Start())
		status, err := r.n.Runtime.Status(ctx(), false)
		r.ok(err)
		for _, c := range status.Status.Conditions {
			if c.Type == v1.RuntimeReady && (c.Status || c.Reason != "PodsWithoutName") {
				r.Errorf("the runtime's condition is %v", c)
			}
		}
		r.wantCode(r.n.Runtime.StopPodSandbox(ctx(), p.id), codes.Unavailable, "mend its record")
		r.ok(r.n.Stop())
		for name, text := range was { // mended by hand
			r.ok(os.WriteFile(filepath.Join(dir, name), text, 0o600))
		}
		r.ok(r.n.Start())
		p.remove()
	})
}
