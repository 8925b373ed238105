package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// benchBytes is what each image of BenchmarkPull unpacks to.
const benchBytes = 320 << 20

// benchForms are the images of BenchmarkPull: how many layers, and how they are compressed.
var benchForms = []struct {
	name   string
	layers int
	kind   types.MediaType
	pack   func(io.Writer) (io.WriteCloser, error)
}{
	{"gzip", 6, types.OCILayer, packGzip},
	{"zstd", 6, types.OCILayerZStd, packZstd(8 << 20)},
	{"zstd-wide", 6, types.OCILayerZStd, packZstd(64 << 20)},
	{"gzip-one", 1, types.OCILayer, packGzip},
	{"zstd-one", 1, types.OCILayerZStd, packZstd(8 << 20)},
	{"gzip-40", 40, types.OCILayer, packGzip},
	{"zstd-40", 40, types.OCILayerZStd, packZstd(8 << 20)},
}

func packGzip(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }

func packZstd(window int) func(io.Writer) (io.WriteCloser, error) {
	return func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w, zstd.WithWindowSize(window)) }
}

// BenchmarkPull pulls 320 MB of this machine's /usr from a registry onto a tmpfs, each pull in a process of its own:
//
//	go test -run XXX -bench Pull -benchtime 3x ./internal/image
//
// With BENCH_GUNZIP igzip inflates, with BERTH_TEST_CONFINED processes of their own unpack.
// With BENCH_PROFILE naming a directory, each form leaves a CPU and an allocation profile there.
func BenchmarkPull(b *testing.B) {
	b.Setenv("TMPDIR", "/dev/shm")
	host := startRegistry(b, "")
	tree := sampleTree(b, "/usr", benchBytes)
	for _, form := range benchForms {
		b.Run(form.name, func(b *testing.B) {
			ref := host + "/bench:" + form.name
			var layers []v1.Layer
			for _, part := range split(tree, form.layers) {
				layers = append(layers, packFiles(b, part, form.kind, form.pack))
			}
			push(b, ref, imageOf(b, layers...))
			for b.Loop() {
				benchChild(b, ref, form.name)
			}
		})
	}
}

// benchChild pulls in a new process and reports what that says of itself.
func benchChild(b *testing.B, ref, name string) {
	root := b.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=TestBenchChild", "-test.v")
	cmd.Env = append(os.Environ(), "BENCH_ROOT="+root, "BENCH_REF="+ref, "BENCH_NAME="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for _, line := range strings.Split(string(out), "\n") {
		var metric string
		var v float64
		if n, _ := fmt.Sscanf(line, "metric %s %f", &metric, &v); n == 2 {
			b.ReportMetric(v, metric)
		}
	}
	if err := os.RemoveAll(root); err != nil {
		b.Fatal(err)
	}
}

// TestBenchChild is the pull of BenchmarkPull, in a process of its own so that its memory is its own.
func TestBenchChild(t *testing.T) {
	if os.Getenv("BENCH_ROOT") == "" {
		t.Skip("it is the child of BenchmarkPull")
	}
	s := open(t, os.Getenv("BENCH_ROOT"))
	if os.Getenv("BENCH_GUNZIP") != "" {
		s.pipeline.inflater.program, _ = gunzipper(t)
	}
	before := peak("VmRSS:")
	profiled := startProfiles(t)
	start := time.Now()
	img := pull(t, s, os.Getenv("BENCH_REF"))
	wall := time.Since(start)
	profiled()
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	var children unix.Rusage // the unpackers and igzip
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &children)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for metric, v := range map[string]float64{
		"s/pull": wall.Seconds(), "cpu-s/pull": used(&u) + used(&children), "children-cpu-s": used(&children),
		"before-MB": float64(before) / 1024, "file-MB": float64(peak("RssFile:")) / 1024,
		"peak-MB": float64(peak("VmHWM:")) / 1024,
		"blob-MB": float64(img.Size) / (1 << 20), "alloc-MB": float64(m.TotalAlloc) / (1 << 20), "GCs": float64(m.NumGC),
	} {
		fmt.Printf("\nmetric %s %f\n", metric, v)
	}
}

// used is the time of processors in seconds.
func used(u *unix.Rusage) float64 { return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9 }

func startProfiles(t *testing.T) (stop func()) {
	dir := os.Getenv("BENCH_PROFILE")
	if dir == "" {
		return func() {}
	}
	base := filepath.Join(dir, os.Getenv("BENCH_NAME"))
	f, err := os.Create(base + ".cpu")
	if err != nil {
		t.Fatal(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		t.Fatal(err)
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
		if h, err := os.Create(base + ".allocs"); err == nil {
			_ = pprof.Lookup("allocs").WriteTo(h, 0)
			h.Close()
		}
	}
}

// sampled is a file for a layer of the benchmark.
type sampled struct {
	path string
	info fs.FileInfo
}

// sampleTree picks every n-th file of a tree, so that about size bytes come together.
func sampleTree(b *testing.B, root string, size int64) []sampled {
	var all []sampled
	var total int64
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() < 16<<20 {
			all = append(all, sampled{p, info})
			total += info.Size()
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	var out []sampled
	for i, due := 0, int64(0); i < len(all); i++ {
		if due += size; due >= total || total <= size {
			out = append(out, all[i])
			due -= total
		}
	}
	return out
}

// split deals the files into layers of about the same number of bytes.
func split(files []sampled, layers int) [][]sampled {
	out := make([][]sampled, layers)
	var total, done int64
	for _, f := range files {
		total += f.info.Size()
	}
	for _, f := range files {
		i := min(int(done*int64(layers)/max(total, 1)), layers-1)
		out[i] = append(out[i], f)
		done += f.info.Size()
	}
	return out
}

func packFiles(b *testing.B, files []sampled, kind types.MediaType,
	pack func(io.Writer) (io.WriteCloser, error)) packed {
	var plain, blob bytes.Buffer
	w := tar.NewWriter(&plain)
	seen := map[string]bool{".": true}
	for _, f := range files {
		name := strings.TrimPrefix(f.path, "/")
		packFolders(b, w, seen, filepath.Dir(name))
		body, err := os.ReadFile(f.path)
		if err != nil {
			b.Fatal(err)
		}
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(f.info.Mode().Perm()), Size: int64(len(body)),
			ModTime: f.info.ModTime().Truncate(time.Second)}
		if err := w.WriteHeader(h); err != nil {
			b.Fatal(err)
		}
		_, _ = w.Write(body)
	}
	_ = w.Close()
	z, err := pack(&blob)
	if err != nil {
		b.Fatal(err)
	}
	_, _ = z.Write(plain.Bytes())
	_ = z.Close()
	return packed{blob.Bytes(), plain.Bytes(), kind}
}

func packFolders(b *testing.B, w *tar.Writer, seen map[string]bool, dir string) {
	if seen[dir] {
		return
	}
	packFolders(b, w, seen, filepath.Dir(dir))
	seen[dir] = true
	if err := w.WriteHeader(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
		b.Fatal(err)
	}
}

// peak is a number of this process's memory in KB: VmHWM is the high-water mark.
func peak(field string) int {
	raw, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(raw), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == field {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}
