package image

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/image/catalog"
)

// largeStore writes a store of so many images, of ten small layers each.
func largeStore(tb testing.TB, root string, images int) {
	tb.Helper()
	d := catalog.NewDisk(root, nil)
	if err := d.MakeDirs(); err != nil {
		tb.Fatal(err)
	}
	for n := range images {
		rec := ofLargeStore(n)
		config := ocispec.Image{Platform: ocispec.Platform{Architecture: "amd64", OS: "linux"}}
		config.Config.Env = []string{fmt.Sprint("N=", n), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		for _, l := range rec.Layers {
			config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.DiffID)
			if err := os.MkdirAll(d.LayerFS(l.ID), 0o700); err != nil {
				tb.Fatal(err)
			}
			made := catalog.LayerRecord{
				ID: l.ID, DiffID: l.DiffID, Bytes: 8192, Inodes: 2, TarSplit: true, Durable: true, Boot: "bench",
			}
			if err := catalog.Describe(d.LayerDir(l.ID), made); err != nil {
				tb.Fatal(err)
			}
		}
		rec.Config, _ = json.Marshal(config)
		rec.ID = digest.FromBytes(rec.Config).String()
		if err := catalog.ImageKind.Write(d.RecordPath(rec.ID), rec); err != nil {
			tb.Fatal(err)
		}
	}
}

// onTmpfs is a directory in memory: a benchmark is to measure Berth and not a disk.
func onTmpfs(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-scale-")
	if err != nil {
		tb.Skip(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// pinnedByBench are names of images of the kind that a node pins.
var pinnedByBench = []string{"registry.k8s.io/pause:*", "busybox", "r.example/*/agent:v1"}

// BenchmarkStore measures what a store of 1,000 images of 10 layers costs, beside an empty one:
//
//	go test -run XXX -bench Store -benchtime 20x ./internal/image
func BenchmarkStore(b *testing.B) {
	host := startRegistry(b, "")
	var layers []v1.Layer
	for n := range 10 {
		layers = append(layers, gz(b, file(fmt.Sprint("f", n), fmt.Sprint("tiny ", n))))
	}
	ref := host + "/tiny:v1"
	push(b, ref, imageOf(b, layers...))
	for _, images := range []int{0, 1000} {
		root := onTmpfs(b)
		largeStore(b, root, images)
		b.Run(fmt.Sprintf("open/%d", images), func(b *testing.B) {
			before := cpuTime()
			for b.Loop() {
				_ = openPinned(b, root).Close()
			}
			b.ReportMetric(float64((cpuTime()-before).Milliseconds())/float64(b.N), "cpu-ms/op")
		})
		s := openPinned(b, root)
		b.Run(fmt.Sprintf("pull/%d", images), func(b *testing.B) {
			for b.Loop() {
				img := pull(b, s, ref)
				b.StopTimer()
				durable(b, s)
				if err := s.Remove(b.Context(), img.ID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprintf("remove/%d", images), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				img := pull(b, s, ref)
				durable(b, s)
				b.StartTimer()
				if err := s.Remove(b.Context(), img.ID); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("sweep/%d", images), func(b *testing.B) {
			for b.Loop() {
				if err := s.Sweep(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
		_ = s.Close()
	}
}

func openPinned(b *testing.B, root string) *Store {
	b.Helper()
	return open(b, root, func(c *Config) { c.BootID, c.Pinned = "bench", pinnedByBench })
}

// cpuTime is what the process has used of the processors.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ofLargeStore is the n-th record of a large store: ten layers of its own, and names.
func ofLargeStore(n int) *catalog.ImageRecord {
	id := digest.FromString(fmt.Sprint("image ", n)).String()
	rec := &catalog.ImageRecord{
		ID: id, Tags: []string{fmt.Sprintf("r.example/app%d:v1", n)},
		Digests: []string{fmt.Sprintf("r.example/app%d@%s", n, id)},
		Durable: true, Boot: "bench", PulledAt: time.Unix(int64(n), 0).UTC(), Size: 1000,
	}
	for l := range 10 {
		diff := digest.FromString(fmt.Sprint("layer ", n, " ", l))
		rec.Layers = append(rec.Layers, catalog.LayerRef{ID: "b" + diff.Encoded(), DiffID: diff, Blob: diff, Size: 100})
	}
	return rec
}
