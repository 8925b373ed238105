package image

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/image/layer"
	"berth/internal/image/progress"
	"berth/internal/image/unpack"
	"berth/test/timeouts"
)

// counted is a crew that remembers the processes that it has started.
type counted struct {
	Crew
	mu  sync.Mutex // guards all
	all []*os.Process
}

func (c *counted) Start(args, env []string, files []*os.File) (*os.Process, error) {
	p, err := c.Crew.Start(args, env, files)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = append(c.all, p)
	}
	return p, err
}

func (c *counted) processes() []*os.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// oneByOne has a crew unpack, and layers be fetched one after the other.
func oneByOne(c Crew) func(*Config) {
	return func(cfg *Config) { cfg.Unpackers, cfg.MaxPullLayers = c, 1 }
}

// TestLayersFollowInAProcess pulls small layers, of which some depend on those below them: one process unpacks them
// all, one finalizes them, and only what was unpacked first is known by its blob alone.
func TestLayersFollowInAProcess(t *testing.T) {
	t.Parallel()
	f := blobServer(t)
	base := gz(t, folder("d"), file("d/a", "base"), file("d/gone", "1"))
	apart, whiteout := zst(t, file("b", "apart")), gz(t, file("d/.wh.gone", ""))
	implied := gz(t, file("d/implied/x", "implied"))
	f.put(t, "v1", imageOf(t, base, apart, whiteout, implied))
	crew := &counted{Crew: testCrew()}
	s := open(t, t.TempDir(), oneByOne(crew))
	s.pipeline.unpackers.spare.lingering = time.Hour
	img := pull(t, s, f.host+"/app:v1")
	if n := len(crew.processes()); n != 2 {
		t.Errorf("%d processes have worked on an image of small layers, not one that unpacked and one that finalized", n)
	}
	for n, id := range img.Layers {
		if isFinalized(id) != (n > 0) {
			t.Errorf("layer %d is %s", n, id)
		}
	}
	for path, want := range map[string]string{"b": "apart", "d/implied/x": "implied", "d/a": "base"} {
		if got := content(t, s, img, path); got != want {
			t.Errorf("%s has %q", path, got)
		}
	}

	// The same blob over another one is another layer, and need not be fetched again.
	f.put(t, "v2", imageOf(t, gz(t, file("other", "1")), apart))
	f.take()
	other := pull(t, s, f.host+"/app:v2")
	if other.Layers[1] == img.Layers[1] || content(t, s, other, "b") != "apart" {
		t.Errorf("over another layer it is %s, as over the first", other.Layers[1])
	}
	if n := f.blobs(); n != 2 { // config and the new layer
		t.Errorf("%d blobs were fetched", n)
	}
	sound(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range crew.processes() {
		if err := p.Signal(unix.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("a process outlives its store: %v", err)
		}
	}
}

// TestSpareProcessGoes leaves a process alone, which ends though the store lives on.
func TestSpareProcessGoes(t *testing.T) {
	t.Parallel()
	f := blobServer(t)
	f.put(t, "v1", imageOf(t, gz(t, file("a", "1"))))
	crew := &counted{Crew: testCrew()}
	s := open(t, t.TempDir(), oneByOne(crew))
	pull(t, s, f.host+"/app:v1")
	end := time.Now().Add(timeouts.For(time.Minute))
	for crew.processes()[0].Signal(unix.Signal(0)) == nil {
		if time.Now().After(end) {
			t.Fatal("the process is still there")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestWhatAProcessIsGiven says which process may have which layer next.
func TestWhatAProcessIsGiven(t *testing.T) {
	layers := make([]layerRequest, 4)
	for i := range layers {
		layers[i] = layerRequest{desc: ocispec.Descriptor{Digest: digest.FromString(fmt.Sprint(i))}, below: layers[:i]}
	}
	had := func(n ...int) (blobs []digest.Digest) {
		for _, i := range n {
			blobs = append(blobs, layers[i].desc.Digest)
		}
		return blobs
	}
	trees := func(names string) (all []layer.Lower) {
		for _, name := range strings.Fields(names) {
			all = append(all, layer.Lower{Path: name})
		}
		return all
	}
	for name, c := range map[string]struct {
		had    []digest.Digest
		trees  []layer.Lower
		task   task
		memory int64
		suits  bool
	}{
		"what is below":             {had: had(0, 1), task: task{layer: layers[2]}, suits: true},
		"what is above":             {had: had(0, 3), task: task{layer: layers[2]}},
		"of another image":          {had: []digest.Digest{digest.FromString("x")}, task: task{layer: layers[2]}},
		"the same blob":             {had: had(2), task: task{layer: layers[2]}},
		"other limits":              {had: had(0), task: task{layer: layers[2]}, memory: 1},
		"one that has trees":        {had: had(0), trees: trees("a"), task: task{layer: layers[2]}},
		"finalize what it unpacked": {had: had(0, 2), task: task{layer: layers[2], lowers: trees("b a")}, suits: true},
		"finalize over more": {
			had: had(0), trees: trees("a"), task: task{layer: layers[2], lowers: trees("b a")}, suits: true,
		},
		"finalize over other trees": {had: had(0), trees: trees("c"), task: task{layer: layers[2], lowers: trees("b a")}},
		"finalize over fewer": {
			had: had(0), trees: trees("c b a"), task: task{layer: layers[2], lowers: trees("b a")},
		},
		"finalize after what is over": {had: had(3), task: task{layer: layers[2], lowers: trees("b a")}},
		"finalize over too many at once": {
			had: had(0), task: task{layer: layers[2], lowers: make([]layer.Lower, unpack.MostTrees+1)},
		},
	} {
		c.task.job.Finalize = strings.HasPrefix(name, "finalize")
		c.task.job.Limits.Memory = c.memory
		p := &unpacker{had: c.had, trees: c.trees}
		if p.suits(c.task) != c.suits {
			t.Errorf("%s: %v", name, !c.suits)
		}
	}
	raw := &rawLayer{after: had(1)}
	for n, mine := range []bool{false, false, true, true} {
		if raw.isOf(layers[n]) != mine {
			t.Errorf("after layer 1 it may be layer %d: %v", n, !mine)
		}
	}
}

// stubborn unpacks an empty layer as the daemon wants it, and then does what the script says with what it has.
func stubborn(t *testing.T, diff, before, after string) Crew {
	t.Helper()
	answer := fmt.Sprintf(`{"answer":{"diff":"%s","result":{"Bytes":4096,"Inodes":1}}}`, diff)
	return shells(emptyLayer + `mkdir fs; ` + before + ` cat >/dev/null; printf '` + answer + `' >&4; ` + after)
}

// TestLayerIsTakenFromItsProcess has a process go on writing to a layer that it has answered for.
func TestLayerIsTakenFromItsProcess(t *testing.T) {
	t.Parallel()
	f := blobServer(t)
	img := imageOf(t, gz(t, file("a", "1")))
	f.put(t, "v1", img)
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	diff := config.RootFS.DiffIDs[0].String()
	t.Run("by its directory", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "out")
		crew := stubborn(t, diff, "",
			`while : >>fs/mine; do sleep 0.01; done; mkdir fs/new || echo refused >`+out+`; exec sleep 1000`)
		s := open(t, t.TempDir(), withCrew(crew))
		pulled := pull(t, s, f.host+"/app:v1")
		for end := time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(time.Millisecond) {
			if text, err := os.ReadFile(out); err == nil && len(text) > 0 {
				break
			}
			if time.Now().After(end) || len(s.pipeline.unpackers.spare.list()) == 0 {
				break // it was ended before it had tried, which is as good
			}
		}
		if _, err := os.Stat(filepath.Join(s.LayerDirs(pulled)[0], "new")); err == nil {
			t.Error("it has made a directory in a layer of the store")
		}
	})
	t.Run("by an open file", func(t *testing.T) {
		crew := &counted{Crew: stubborn(t, diff, `exec 5>fs/held;`, `exec sleep 1000`)}
		s := open(t, t.TempDir(), withCrew(crew))
		pull(t, s, f.host+"/app:v1")
		for _, p := range crew.processes() {
			if err := p.Signal(unix.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
				t.Error("a process that can still write to a layer is there:", err)
			}
		}
	})
}

// list are the processes that wait.
func (s *spares) list() []*unpacker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.processes)
}

// TestProcessThatDiesBetweenLayers kills a process that waits: the next layer finds another.
func TestProcessThatDiesBetweenLayers(t *testing.T) {
	t.Parallel()
	f := blobServer(t)
	base := gz(t, folder("d"), file("d/a", "1"))
	f.put(t, "v1", imageOf(t, base))
	f.put(t, "v2", imageOf(t, base, gz(t, file("d/i/x", "1"))))
	crew := &counted{Crew: testCrew()}
	s := open(t, t.TempDir(), oneByOne(crew))
	pull(t, s, f.host+"/app:v1")
	for _, p := range s.pipeline.unpackers.spare.list() {
		_ = p.process.Kill()
		for p.isQuiet() {
			time.Sleep(time.Millisecond)
		}
	}
	if img := pull(t, s, f.host+"/app:v2"); content(t, s, img, "d/i/x") != "1" {
		t.Error("the layer is not there")
	}
	sound(t, s)
}

// TestFinalizingAfterAnotherFails kills a process that finalizes, and has done so before: the layer is made once more.
func TestFinalizingAfterAnotherFails(t *testing.T) {
	t.Parallel()
	f := blobServer(t)
	img := imageOf(t, gz(t, folder("d"), file("d/a", "1")), gz(t, file("d/i/x", "1")), gz(t, file("d/i/y", "1")))
	f.put(t, "v1", img)
	crew := &counted{Crew: testCrew()}
	s := open(t, t.TempDir(), oneByOne(crew))
	s.pipeline.unpackers.spare.lingering = time.Hour
	last := manifestOf(t, img).Layers[2].Digest
	killed := false
	pulled, err := s.Pull(t.Context(), PullRequest{Reference: f.host + "/app:v1", Progress: func(p progress.Event) {
		if all := crew.processes(); p.Layer == last && p.Phase == progress.Finalizing && !killed {
			killed = true
			_ = all[len(all)-1].Kill()
		}
	}})
	if err != nil || content(t, s, pulled, "d/i/y") != "1" || !killed {
		t.Errorf("the pull ends with %v", err)
	}
	sound(t, s)
}

// killing is a blob whose reader is in the way of whoever unpacks it.
type killing struct {
	io.Reader
	kill func()
}

func (k killing) Read(p []byte) (int, error) {
	k.kill()
	return k.Reader.Read(p)
}

// TestLayerAfterAnotherFails has a process fail at the second layer that it is given: another one is to say what is
// wrong with that, and nothing is.
func TestLayerAfterAnotherFails(t *testing.T) {
	t.Parallel()
	crew := &counted{Crew: testCrew()}
	s := open(t, t.TempDir(), withCrew(crew))
	s.pipeline.unpackers.spare.lingering = time.Hour
	job := jobOf(s.pipeline.settings())
	job.Algorithm = "sha256"
	below := layerRequest{desc: ocispec.Descriptor{Digest: digest.FromString("below"), Size: 1000}}
	above := ocispec.Descriptor{Digest: digest.FromString("above"), Size: 1000}
	w := layerRequest{desc: above, below: []layerRequest{below}}
	unpack := func(w layerRequest, kill func()) error {
		dir, discard, err := s.disk.NewIngest("pull.ingest")
		if err != nil {
			t.Fatal(err)
		}
		defer discard()
		content, err := gz(t, file("a", "1")).Compressed()
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.pipeline.unpackers.unpack(t.Context(), killing{content, kill}, w, dir, job, func() {})
		return err
	}
	if err := unpack(below, func() {}); err != nil {
		t.Fatal(err)
	}
	err := unpack(w, func() { _ = crew.processes()[0].Kill() })
	next, more := again(w, err)
	if !more || !next.alone {
		t.Fatalf("the layer is not made again: %v", err)
	}
	if err := unpack(next, func() {}); err != nil || len(crew.processes()) != 2 {
		t.Errorf("%d processes: %v", len(crew.processes()), err)
	}
	if _, more := again(next, err); more {
		t.Error("it would be made a third time")
	}
}
