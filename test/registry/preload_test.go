package registry

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/fixture"
)

// TestPreloadedImages has a directory of images at the start: an archive, a list with a registry that does not answer
// and one that does, and what is neither. The node is ready at once, the images come, are pinned, and are not taken in
// again by the next daemon.
func TestPreloadedImages(t *testing.T) {
	dir := t.TempDir()
	r := openOwn(t, patient+"preload_dir = \""+dir+"\"\n")
	p, silent := r.proxy(), r.proxy()
	silent.On(fixture.Fault{Silent: true})
	a := r.app(mib, 64*kib)
	b := r.appNamed("t/"+r.unique()+"-listed:v1", 64*kib).push()
	r.ok(r.n.Stop())
	r.ok(unix.Mkfifo(filepath.Join(dir, "fifo.tar"), 0o644))
	r.ok(fixture.WriteOCI(filepath.Join(dir, "a.tar"), a.at("nowhere.test"), a.image))
	list := silent.Addr + "/t/silent:v1\n" + b.at(p.Addr) + " # from a registry\n"
	r.ok(os.WriteFile(filepath.Join(dir, "b.txt"), []byte(list), 0o644))
	r.ok(r.n.Start())
	a.comes(a.at("nowhere.test"))
	b.comes(b.at(p.Addr))
	r.eventually("what is wrong is told", func() bool {
		out, _ := r.n.Command("doctor").CombinedOutput()
		return bytes.Contains(out, []byte("fifo.tar: it is no file"))
	})
	r.await(silent, fixture.PartManifest, func(seen []fixture.Request) bool { return len(seen) > 0 })
	if got := r.awaitPull(silent.Addr+"/t/silent:v1", anyPull); got.Phase != "resolving" {
		t.Errorf("a name that waits for its registry is %+v", got)
	}

	r.remove(a.at("nowhere.test"))
	out, err := r.n.Command("reload").CombinedOutput() // else it comes again within two minutes
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a.comes(a.at("nowhere.test"))
	r.eventually("its import has ended", func() bool { return r.imports("a.tar") == 2 })
	r.eventually("that is noted", func() bool { // within a second, and the daemon is killed
		text, err := os.ReadFile(filepath.Join(r.n.Root, "images/preload/record"))
		return err == nil && bytes.Contains(text, []byte(`"a.tar"`))
	})
	r.ok(r.n.Restart())
	for _, img := range []string{a.at("nowhere.test"), b.at(p.Addr)} {
		if got := r.image(img); got == nil || !got.Pinned {
			t.Errorf("after a restart %s is %v", img, got)
		}
	}
	c := r.appNamed("t/"+r.unique()+"-later:v1", 64*kib)
	r.ok(fixture.WriteDocker(filepath.Join(dir, ".c.tar"), c.at("nowhere.test"), c.image))
	r.ok(os.Rename(filepath.Join(dir, ".c.tar"), filepath.Join(dir, "c.tar")))
	c.comes(c.at("nowhere.test"))
	r.eventually("its import has ended", func() bool { return r.imports("c.tar") > 0 })
	for file, want := range map[string]int{"a.tar": 2, "c.tar": 1} {
		if got := r.imports(file); got != want {
			t.Errorf("%s was imported %d times, want %d", file, got, want)
		}
	}

	r.ok(os.Remove(filepath.Join(dir, "c.tar")))
	r.eventually("what has no file any more is not pinned", func() bool { return !r.image(c.at("nowhere.test")).Pinned })
	if out, err := r.n.Command("check").CombinedOutput(); !strings.Contains(string(out), "fifo.tar") {
		t.Errorf("check: %v: %s", err, out)
	}
}

// imports counts in the log how often a file was imported.
func (r rig) imports(file string) (n int) {
	for line := range strings.Lines(r.n.DaemonLog(100_000)) {
		if strings.Contains(line, "the images of an archive are there") && strings.Contains(line, file) {
			n++
		}
	}
	return n
}

// comes waits until the image is there whole, and pinned.
func (a *app) comes(reference string) {
	a.Helper()
	a.eventually(reference+" is there", func() bool { img := a.rig.image(reference); return img != nil && img.Pinned })
	a.arrived(reference)
}
