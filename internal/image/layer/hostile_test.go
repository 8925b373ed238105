package layer

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// attack is an image that wants to hurt the node: the lower layer, which may be none, and the one above it. Both are
// made while they are read: they must not count as memory of who unpacks them.
type attack struct {
	name  string
	lower func(add func(item))
	upper func(add func(item))
	// refused is part of the error; "" means that it is unpacked.
	refused string
}

// attacks are sized by n; the whole of each is at n = 1.
func attacks(n float64) []attack {
	part := func(k int) int { return max(1, int(float64(k)*n)) }
	long := strings.Repeat("x", 900_000)
	return []attack{
		{name: "hard links of 0.9 MB", refused: "link target", upper: func(add func(item)) {
			for i := range part(600) {
				add(hardlink(fmt.Sprint("l", i), fmt.Sprint("nowhere/", i, long)))
			}
		}},
		{name: "names of 0.9 MB", refused: "name of the layer entry", upper: func(add func(item)) {
			for i := range part(600) {
				add(file(fmt.Sprint(i, long), ""))
			}
		}},
		{name: "access lists of 0.9 MB", refused: "attribute", upper: func(add func(item)) {
			for i := range part(300) {
				add(pax(dir(fmt.Sprint("d", i), 0o755), paxXattr+defaultACL, long))
			}
		}},
		{name: "many long hard links", refused: "images.max_layer_memory_bytes", upper: func(add func(item)) {
			for i := range part(100_000) {
				add(hardlink(fmt.Sprint("l", i), fmt.Sprintf("nowhere/%06d%s", i, long[:3900])))
			}
		}},
		{name: "undescribed directories 1990 deep", upper: func(add func(item)) {
			for i := range part(60) {
				add(file(fmt.Sprintf("%03d/%sx", i, strings.Repeat("a/", 1990)), ""))
			}
		}},
		{name: "undescribed directories 1900 deep over the same", lower: func(add func(item)) {
			for i := range part(20) {
				add(file(fmt.Sprintf("%03d/%sx", i, strings.Repeat("a/", 1900)), ""))
			}
		}, upper: func(add func(item)) {
			for i := range part(20) {
				add(file(fmt.Sprintf("%03d/%sy", i, strings.Repeat("a/", 1900)), ""))
			}
		}},
		{name: "files through symlinks below", lower: func(add func(item)) {
			add(dir("t", 0o755))
			for i := range part(4000) {
				add(dir(fmt.Sprint("t/", i), 0o755))
				add(symlink(fmt.Sprint("d", i), fmt.Sprint("t/", i)))
			}
		}, upper: func(add func(item)) {
			for i := range part(4000) {
				add(file(fmt.Sprintf("d%d/f", i), "x"))
			}
		}},
		{name: "one implied directory and many files", upper: func(add func(item)) {
			for i := range part(200_000) {
				add(file(fmt.Sprintf("opt/venv/lib/python3.12/site-packages/p%d/m%d/f%d.py", i%400, i%40, i), ""))
			}
		}},
		{name: "paths through long symlinks", refused: "components", upper: func(add func(item)) {
			add(file(strings.Repeat("a/", 1000)+"x", ""))
			add(symlink("s", strings.TrimSuffix(strings.Repeat("a/../", 800), "/")))
			for i := range part(20) {
				add(file(fmt.Sprint(strings.Repeat("s/", 250), "f", i), ""))
			}
		}},
	}
}

// stream is a layer that is made as it is read.
func stream(make func(add func(item))) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		var failed error
		make(func(i item) {
			h := i.Header
			h.Format, h.ModTime = tar.FormatPAX, epoch
			if failed == nil {
				failed = tw.WriteHeader(&h)
			}
			if failed == nil {
				_, failed = io.WriteString(tw, i.body)
			}
		})
		if failed == nil {
			failed = tw.Close()
		}
		w.CloseWithError(failed)
	}()
	return r
}

// hostileLimits are those of the image store.
var hostileLimits = Limits{Bytes: 128 << 30, Entries: 8 << 20, Memory: 32 << 20}

// unpackAttack unpacks and finalizes an attack below dir, and says how often the tree of its directories was looked
// into.
func unpackAttack(ctx context.Context, t testing.TB, dir string, a attack) (looks int64, err error) {
	var lowers []string
	if a.lower != nil {
		d := filepath.Join(dir, "lower")
		if _, err := unpackStream(t.Context(), t, d, a.lower, nil); err != nil {
			t.Fatal(err)
		}
		lowers = []string{filepath.Join(d, FS)}
	}
	return unpackStream(ctx, t, filepath.Join(dir, "upper"), a.upper, lowers)
}

func unpackStream(
	ctx context.Context, t testing.TB, dir string, make func(func(item)), lowers []string,
) (looks int64, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	in := stream(make)
	defer in.Close()
	res, err := Unpack(ctx, in, dir, hostileLimits)
	if err != nil {
		return 0, err
	}
	if dirs, gone := res.dirs, res.gone; dirs != nil {
		defer func() { looks = *dirs.looks + *gone.looks }()
	}
	return 0, Finalize(ctx, dir, res, treesAt(t, lowers...))
}

// TestAttacks unpacks a tenth of each attack, in a process of its own, which must not need much more memory than it has
// before.
func TestAttacks(t *testing.T) {
	inMemory(t)
	for _, a := range attacks(1) {
		t.Run(strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
			if got := attackChild(t, a.name, 0.1)["peak-MB"]; got > 48 {
				t.Errorf("the peak of memory is %.0f MiB above what there was before", got)
			}
		})
	}
}

// inMemory has a test write to a file system that is none of a disk's, where there is one: it makes many files.
func inMemory(t *testing.T) {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm")
	}
}

// BenchmarkAttacks tells of the whole attacks:
//
//	TMPDIR=/dev/shm go test -run XXX -bench Attacks -benchtime 1x ./internal/image/layer
func BenchmarkAttacks(b *testing.B) {
	for _, a := range attacks(1) {
		b.Run(strings.ReplaceAll(a.name, " ", "-"), func(b *testing.B) {
			for b.Loop() {
				for metric, v := range attackChild(b, a.name, 1) {
					b.ReportMetric(v, metric)
				}
			}
		})
	}
}

// attackChild runs an attack in a new process and returns what that says of itself.
func attackChild(t testing.TB, name string, part float64) map[string]float64 {
	t.Helper()
	root := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAttackChild$", "-test.v")
	cmd.Env = append(os.Environ(), "ATTACK="+name, "ATTACK_PART="+fmt.Sprint(part), "ATTACK_ROOT="+root)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := removeDeep(root); err != nil {
		t.Fatal(err)
	}
	return metrics(out)
}

// metrics are the lines of a child's output that say a name and a number.
func metrics(out []byte) map[string]float64 {
	found := map[string]float64{}
	for line := range strings.SplitSeq(string(out), "\n") {
		var metric string
		var v float64
		if n, _ := fmt.Sscanf(line, "metric %s %f", &metric, &v); n == 2 {
			found[metric] = v
		}
	}
	return found
}

// removeDeep removes a tree of any depth.
func removeDeep(root string) error { return exec.Command("rm", "-rf", root).Run() }

func TestAttackChild(t *testing.T) {
	part, err := strconv.ParseFloat(os.Getenv("ATTACK_PART"), 64)
	if err != nil {
		t.Skip("it is the child of TestAttacks")
	}
	for _, a := range attacks(part) {
		if a.name != os.Getenv("ATTACK") {
			continue
		}
		runtime.GC()
		before, start := memory("VmRSS:"), time.Now()
		_, err := unpackAttack(t.Context(), t, os.Getenv("ATTACK_ROOT"), a)
		peak := memory("VmHWM:") - before
		if a.refused == "" && err != nil {
			t.Fatal(err)
		}
		if part == 1 && a.refused != "" && (err == nil || !strings.Contains(err.Error(), a.refused)) {
			t.Fatalf("error is %v, wanted %q", err, a.refused)
		}
		fmt.Printf("\nmetric peak-MB %f\nmetric s %f\n", float64(peak)/1024, time.Since(start).Seconds())
	}
}

// memory is a number of this process's memory in KB.
func memory(field string) int {
	raw, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(raw), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == field {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}
