package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// script puts a program where a daemon looks for verifiers, by a rename.
func (r rig) script(dir, name, text string) {
	r.Helper()
	fresh := filepath.Join(dir, "."+name)
	r.ok(os.WriteFile(fresh, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	r.ok(os.Rename(fresh, filepath.Join(dir, name)))
}

// verified makes a node with a directory of verifiers.
func verified(t *testing.T) (r rig, dir string) {
	t.Helper()
	dir = t.TempDir()
	return ownNode(t, node.Options{Runtime: runtimes()[0], Tables: fmt.Sprintf("[image_verifier]\ndir = %q\nmax = 3\n"+
		"timeout = \"10m\"\n", dir)}), dir
}

// TestImageVerifier wants the kubelet's own client to see the word that the kubelet looks for, at the very beginning.
func TestImageVerifier(t *testing.T) {
	r, dir := verified(t)
	name := r.repository() + ":v1"
	byDigest := r.push(name, r.small(fixture.Recipe{}))
	_, digest, _ := strings.Cut(byDigest, "@")
	seen := filepath.Join(t.TempDir(), "seen")
	r.script(dir, "policy", `echo "$@" >`+seen+`; echo "not signed"; exit 1`)
	want := fmt.Sprintf(`SignatureValidationFailed: pull image %s: %s: verifier "policy" refuses it: not signed`,
		ref(name), digest)
	if err := r.tryPull(ref(name), nil); err == nil || err.Error() != want {
		t.Errorf("got    %v\nwanted %s", err, want)
	}
	if got := r.image(ref(name)); got != nil {
		t.Errorf("refused and kept: %v", got)
	}
	args, err := os.ReadFile(seen)
	r.ok(err)
	r.wantText("arguments", string(args), "-name "+ref(name)+" -digest "+digest+" -stdin-media-type "+
		"application/vnd.oci.descriptor.v1+json")
	_, stderr, _ := r.berth("pull", ref(name))
	if !strings.Contains(stderr, want) {
		t.Errorf("berth pull says %q", stderr)
	}
	r.script(dir, "policy", "exit 0")
	r.ok(r.tryPull(ref(name), nil))
	r.script(dir, "second", "exit 7")
	if err := r.tryPull(byDigest, nil); err == nil || !strings.HasPrefix(err.Error(), "SignatureValidationFailed: ") {
		t.Errorf("an image that is here: %v", err)
	}
	r.ok(os.RemoveAll(dir))
	if err := r.tryPull(ref(name), nil); err == nil || !strings.Contains(err.Error(), dir+" is not there") {
		t.Errorf("without the directory: %v", err)
	}
}

// ofShop puts a pod into another namespace.
func ofShop(c *v1.PodSandboxConfig) {
	c.Metadata.Namespace, c.Metadata.Name = "shop", c.Metadata.Name+"-shop"
}

// TestImagesInForce has verifiers refuse an image that they had accepted: a container of it is not made, though it is
// on the node, in the namespace for which they refuse it.
func TestImagesInForce(t *testing.T) {
	r, dir := verified(t)
	asked := filepath.Join(t.TempDir(), "asked")
	r.script(dir, "policy", "echo $BERTH_POD_NAMESPACE >>"+asked)
	r.pull("busybox:latest")
	times := func() int {
		text, err := os.ReadFile(asked)
		r.ok(err)
		return strings.Count(string(text), "\n")
	}
	p := r.pod()
	before := times()
	for _, name := range []string{"a", "b"} {
		r.wantText("output", p.output(busybox(name, "echo ran")), "ran")
	}
	if got := times() - before; got != 1 {
		r.Errorf("two containers of an image asked %d times", got)
	}
	text, err := os.ReadFile(asked)
	r.ok(err)
	if !strings.HasSuffix(string(text), p.config.Metadata.Namespace+"\n") {
		r.Errorf("the namespaces asked about are %q", text)
	}
	r.script(dir, "policy", `test "$BERTH_POD_NAMESPACE" != shop || { echo revoked; exit 1; }`)
	r.wantText("output", p.output(busybox("c", "echo ran")), "ran")
	shop := r.pod(ofShop)
	_, err = r.n.Runtime.CreateContainer(ctx(), shop.id, busybox("d", "echo ran"), shop.config)
	if err == nil || !strings.Contains(err.Error(), `verifier "policy" refuses it: revoked`) {
		r.Errorf("got %v", err)
	}
	list, err := r.n.Runtime.ListContainers(ctx(), &v1.ContainerFilter{PodSandboxId: shop.id})
	r.ok(err)
	if len(list) != 0 {
		r.Errorf("what was refused is there: %v", list)
	}
}

// TestHungConfirmation has a verifier hang for one pod: others are made, and that pod is stopped at once.
func TestHungConfirmation(t *testing.T) {
	r, dir := verified(t)
	r.script(dir, "policy", "exit 0")
	r.pull("busybox:latest")
	pid := filepath.Join(t.TempDir(), "pid")
	r.script(dir, "policy", `test "$BERTH_POD_NAMESPACE" != shop || { echo $$ >`+pid+`; exec sleep 1000; }`)
	shop := r.pod(ofShop)
	made := make(chan error, 1)
	client := r.n.Runtime
	go func() {
		_, err := client.CreateContainer(ctx(), shop.id, busybox("d", "echo ran"), shop.config)
		made <- err
	}()
	r.eventually("the verifier hangs", func() bool { text, _ := os.ReadFile(pid); return len(text) > 0 })
	r.wantText("output", r.pod().output(busybox("main", "echo ran")), "ran")
	r.ok(r.n.Runtime.StopPodSandbox(ctx(), shop.id)) // the verifier's timeout is ten minutes
	if err := <-made; err == nil {
		r.Error("the container was made")
	}
	text, err := os.ReadFile(pid)
	r.ok(err)
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(text))); err == nil {
		r.Error("the verifier runs still")
	}
}

// TestHungVerifier has a verifier that hangs with a child of its own when the daemon is killed: the next one ends both.
func TestHungVerifier(t *testing.T) {
	r, dir := verified(t)
	name := r.repository() + ":v1"
	r.push(name, r.small(fixture.Recipe{}))
	pids := filepath.Join(t.TempDir(), "pids")
	r.script(dir, "hangs", "sleep 1000 & echo $$ $! >"+pids+".new; mv "+pids+".new "+pids+"; wait")
	images := r.n.Images // the client of the daemon that is killed
	go func() { _, _ = images.PullImage(ctx(), &v1.ImageSpec{Image: ref(name)}, nil, nil) }()
	r.eventually("the verifier runs", func() bool { _, err := os.Stat(pids); return err == nil })
	r.script(dir, "hangs", "exit 0")
	r.ok(r.n.Restart())
	text, err := os.ReadFile(pids)
	r.ok(err)
	r.eventually("the verifier and its child are gone", func() bool {
		for _, pid := range strings.Fields(string(text)) {
			if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
				return false
			}
		}
		return true
	})
	r.ok(r.tryPull(ref(name), nil))
}

// TestRegistryUnavailableIsSeen wants the other word that a kubelet looks for where it looks for it.
func TestRegistryUnavailableIsSeen(t *testing.T) {
	each(t, func(r rig) {
		if err := r.tryPull("127.0.0.1:1/nobody/answers:v1", nil); err == nil ||
			!strings.HasPrefix(err.Error(), "RegistryUnavailable: ") {
			r.Errorf("got %v", err)
		}
	})
}
