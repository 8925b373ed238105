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
	return ownNode(t, node.Options{Runtime: runtimes()[0], Tables: fmt.Sprintf("[image_verifier]\ndir = %q\nmax = 3\ntimeout = \"1m\"\n", dir)}), dir
}

// TestImageVerifier wants the kubelet's own client to see the word that the kubelet looks for, at the very beginning.
func TestImageVerifier(t *testing.T) {
	r, dir := verified(t)
	name := r.repository() + ":v1"
	byDigest := r.push(name, r.small(fixture.Recipe{}))
	_, digest, _ := strings.Cut(byDigest, "@")
	seen := filepath.Join(t.TempDir(), "seen")
	r.script(dir, "policy", `echo "$@" >`+seen+`; echo "not signed"; exit 1`)
	want := fmt.Sprintf(`SignatureValidationFailed: pull image %s: %s: verifier "policy" refuses it: not signed`, ref(name), digest)
	if err := r.tryPull(ref(name), nil); err == nil || err.Error() != want {
		t.Errorf("got    %v\nwanted %s", err, want)
	}
	if got := r.image(ref(name)); got != nil {
		t.Errorf("refused and kept: %v", got)
	}
	args, err := os.ReadFile(seen)
	r.ok(err)
	r.wantText("arguments", string(args), "-name "+ref(name)+" -digest "+digest+" -stdin-media-type application/vnd.oci.descriptor.v1+json")
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
		if err := r.tryPull("127.0.0.1:1/nobody/answers:v1", nil); err == nil || !strings.HasPrefix(err.Error(), "RegistryUnavailable: ") {
			r.Errorf("got %v", err)
		}
	})
}
