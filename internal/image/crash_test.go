//go:build berth_fault

package image

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/record"
	"berth/test/volume"
)

// crashBench is what the children of a crash test work with: a registry with images, an archive, and what an
// undisturbed child passes.
type crashBench struct {
	env    []string
	passes []string // point#n for the n-th pass of a point
}

func newCrashBench(t *testing.T) *crashBench {
	t.Helper()
	host := startRegistry(t, "")
	base := gz(t, folder("d"), file("d/a", "1"))
	push(t, host+"/app:v0", imageOf(t, gz(t, file("w", "0"))))
	finalized := gz(t, file("d/implied/x", "1"))
	push(t, host+"/app:v1", imageOf(t, base, finalized))
	push(t, host+"/app:v3", imageOf(t, gz(t, folder("d"), file("d/b", "3")), finalized))
	push(t, host+"/app:v2", imageOf(t, base, gz(t, file("y", "2"))))
	archive, trace := filepath.Join(t.TempDir(), "archive"), filepath.Join(t.TempDir(), "trace")
	data := ociTar(t, map[string]v1.Image{"imported:v1": imageOf(t, base, gz(t, file("z", strings.Repeat("z", 9000))))})
	if err := os.WriteFile(archive, data, 0o600); err != nil {
		t.Fatal(err)
	}
	b := &crashBench{env: append(os.Environ(), "CRASH_HOST="+host, "CRASH_ARCHIVE="+archive)}
	if err := b.child(t.TempDir(), "BERTH_FAULT_TRACE="+trace).Run(); err != nil {
		t.Fatalf("the undisturbed child: %v", err)
	}
	raw, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, point := range strings.Fields(string(raw)) {
		seen[point]++
	}
	for point, times := range seen {
		for n := 1; n <= times; n++ {
			if n == 1 || n == times || os.Getenv("BERTH_SOAK") != "" {
				b.passes = append(b.passes, fmt.Sprintf("%s#%d", point, n))
			}
		}
	}
	if len(seen) < 40 {
		t.Errorf("only the points %v", b.passes)
	}
	slices.Sort(b.passes)
	return b
}

func (b *crashBench) child(root string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(append(b.env, "CRASH_ROOT="+root, "CRASH_BOOT=one"), env...)
	return cmd
}

// killAt runs a child that is killed at a pass, and returns what it promised until then. It is nil when the child never
// came by: how often some points are passed depends on which of two goroutines is faster.
func (b *crashBench) killAt(t *testing.T, root, pass string) *promises {
	t.Helper()
	notes := filepath.Join(t.TempDir(), "notes")
	point, n, _ := strings.Cut(pass, "#")
	cmd := b.child(root, "BERTH_FAULT="+point+"=kill#"+n, "CRASH_NOTES="+notes)
	var said strings.Builder
	cmd.Stdout = &said
	err := cmd.Run()
	if err == nil && n != "1" {
		return nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("child ended with %v, wanted SIGKILL\n%s", err, &said)
	}
	return readPromises(t, notes)
}

// TestCrashAtEveryPoint learns the fault points of all that a store does from a trace, kills a process at each, and
// wants the next Open to find a sound store on which the same work succeeds.
func TestCrashAtEveryPoint(t *testing.T) {
	b := newCrashBench(t)
	for _, pass := range b.passes {
		t.Run(pass, func(t *testing.T) {
			root := t.TempDir()
			if p := b.killAt(t, root, pass); p != nil {
				b.recover(t, root, "one", append(p.durable, p.there...), p)
			}
		})
	}
}

// TestCrashByPowerCut is TestCrashAtEveryPoint on a file system that loses its power when the process is killed: what
// was not synced is lost, or worse, the journal was just written and the content of files was not. What comes up in
// another boot must be a store in which every image that is offered is whole, and no image that was durable is missing.
//
// Each point is tried with one kind of loss on one file system, in a soak with all.
//
// It can fail: without the syncfs in syncOnce it finds empty files in images that are marked durable, on both file
// systems.
func TestCrashByPowerCut(t *testing.T) {
	b := newCrashBench(t)
	for k, kind := range []volume.Kind{volume.Ext4, volume.XFS} {
		for loss, name := range map[volume.Loss]string{volume.Unlogged: "unlogged", volume.Unwritten: "unwritten"} {
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				if err := kind.Available(); err != nil {
					t.Skip(err)
				}
				for i, pass := range b.passes {
					if os.Getenv("BERTH_SOAK") != "" || loss == volume.Unwritten && i%2 == k || i%8 == k {
						t.Run(pass, func(t *testing.T) { b.cutAt(t, kind, loss, pass) })
					}
				}
			})
		}
	}
}

func (b *crashBench) cutAt(t *testing.T, kind volume.Kind, loss volume.Loss, pass string) {
	v, err := volume.Make(t.TempDir(), kind, 32)
	if err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	t.Cleanup(func() {
		if err := v.Unmount(); err != nil {
			t.Error(err)
		}
	})
	if err := v.Mount(at); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(at, "images")
	p := b.killAt(t, root, pass)
	if p == nil {
		return
	}
	if err := v.Cut(loss); err != nil {
		t.Fatal(err)
	}
	if err := v.Mount(at); err != nil {
		t.Fatal(err)
	}
	b.recover(t, root, "two", p.durable, p)
}

// recover opens the store that a killed child left, wants it to be as promised, and has the same work done on it.
func (b *crashBench) recover(t *testing.T, root, boot string, wanted []string, p *promises) {
	t.Helper()
	withBoot := func(c *Config) { c.BootID = boot }
	s := open(t, root, withBoot)
	for _, f := range s.Problems() {
		t.Errorf("problem: %+v", f)
	}
	if p.damaged {
		mend(t, s)
	}
	for _, id := range wanted {
		if _, ok := s.Get(id); !ok {
			t.Errorf("image %s is lost", id)
		}
	}
	for _, id := range p.gone {
		if _, ok := s.Get(id); ok {
			t.Errorf("image %s, which was removed, is back", id)
		}
	}
	onlyWhatIsOwned(t, s)
	_ = s.Close()
	for _, e := range append(b.env, "CRASH_ROOT="+root, "CRASH_BOOT="+boot,
		"CRASH_NOTES="+filepath.Join(t.TempDir(), "notes")) {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, "CRASH_") {
			t.Setenv(name, value)
		}
	}
	if err := crashWork(); err != nil {
		t.Fatalf("the same work again: %v", err)
	}
	s = open(t, root, withBoot)
	for _, img := range s.List() {
		if err := s.Remove(t.Context(), img.ID); err != nil {
			t.Error(err)
		}
	}
	onlyWhatIsOwned(t, s)
	if n := layersOnDisk(t, s); n != 0 {
		t.Errorf("%d layers are left", n)
	}
	_ = s.Close()
}

// mend repairs what the child broke by hand and did not live to repair.
func mend(t *testing.T, s *Store) {
	t.Helper()
	err := s.Check(t.Context(), true, func(f Finding) {
		if !f.Repaired {
			t.Errorf("not repaired: %+v", f)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// onlyWhatIsOwned sweeps, and wants every image whole and nothing on the disk that belongs to none.
func onlyWhatIsOwned(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	sound(t, s)
	owned := map[string]bool{}
	for _, img := range s.List() {
		for _, id := range img.Layers {
			owned[id] = true
		}
	}
	if n := layersOnDisk(t, s); n != len(owned) || asides(t, s) != 0 {
		t.Errorf("%d layers on disk and %d put aside, %d in images", n, asides(t, s), len(owned))
	}
	temps, _ := filepath.Glob(filepath.Join(s.disk.Root, "*", "*", record.TempPrefix+"*"))
	more, _ := filepath.Glob(filepath.Join(s.disk.Root, "*", record.TempPrefix+"*"))
	if temps = append(temps, more...); len(temps) != 0 {
		t.Errorf("temporary files are left: %v", temps)
	}
}

// promises are what a child has said of images, by id, before it was killed.
type promises struct {
	there   []string // a pull or import was answered
	durable []string // and the disk has it
	gone    []string // removed, and the disk knows
	damaged bool     // a layer was broken by hand and not mended yet
}

func readPromises(t *testing.T, notes string) *promises {
	t.Helper()
	raw, err := os.ReadFile(notes)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	last, p := map[string]string{}, &promises{}
	for line := range strings.Lines(string(raw)) {
		word, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		last[id] = word
	}
	for id, word := range last {
		switch word {
		case "there":
			p.there = append(p.there, id)
		case "durable":
			p.durable = append(p.durable, id)
		case "gone":
			p.gone = append(p.gone, id)
		case "damaged":
			p.damaged = true
		}
	}
	return p
}
