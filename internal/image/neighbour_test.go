package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// BenchmarkNeighbour pulls 320 MB onto an ext4 with a journal, on which somebody else appends 2 KiB and syncs, as
// etcd does, and says how long that one's syncs take: during the pull, and until the image is durable.
//
//	BENCH_DISK=/var/tmp go test -run XXX -bench Neighbour -benchtime 5x ./internal/image
//
// BENCH_DISK is where the file of the loop device is to be: on a disk, since memory writes at once.
func BenchmarkNeighbour(b *testing.B) {
	disk := os.Getenv("BENCH_DISK")
	if disk == "" {
		b.Skip("BENCH_DISK names no directory")
	}
	b.Setenv("TMPDIR", "/dev/shm")
	host := startRegistry(b, "")
	var layers []v1.Layer
	for _, part := range split(sampleTree(b, "/usr", benchBytes), 6) {
		layers = append(layers, packFiles(b, part, types.OCILayerZStd, packZstd(8<<20)))
	}
	push(b, host+"/bench:v1", imageOf(b, layers...))
	var all []time.Duration
	var pulled, durable time.Duration
	for b.Loop() {
		took, p, d := pullBeside(b, disk, host+"/bench:v1")
		all, pulled, durable = append(all, took...), pulled+p, durable+d
	}
	slices.Sort(all)
	at := func(share float64) float64 { return all[int(share*float64(len(all)-1))].Seconds() * 1e3 }
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(at(1), "max-ms")
	b.ReportMetric(float64(len(all))/float64(b.N), "syncs/op")
	b.ReportMetric(pulled.Seconds()/float64(b.N), "pull-s/op")
	b.ReportMetric(durable.Seconds()/float64(b.N), "durable-s/op")
}

// pullBeside pulls onto a fresh file system, and returns how long each sync of the neighbour took, and how long it
// took until the image was pulled and until it was durable.
func pullBeside(b *testing.B, disk, ref string) (took []time.Duration, pulled, durable time.Duration) {
	b.StopTimer()
	mnt := mountJournalled(b, disk)
	s := open(b, filepath.Join(mnt, "images"))
	stop := make(chan struct{})
	var neighbour sync.WaitGroup
	neighbour.Go(func() { took = appendAndSync(b, filepath.Join(mnt, "log"), stop) })
	time.Sleep(100 * time.Millisecond)
	begun := time.Now()
	b.StartTimer()
	img := pull(b, s, ref)
	pulled = time.Since(begun)
	for !img.Durable {
		time.Sleep(time.Millisecond)
		img, _ = s.Get(ref)
	}
	durable = time.Since(begun)
	b.StopTimer()
	close(stop)
	neighbour.Wait()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.StartTimer()
	return took, pulled, durable
}

// appendAndSync appends to a file and syncs, a hundred times a second at most.
func appendAndSync(b *testing.B, path string, stop chan struct{}) (took []time.Duration) {
	f, err := os.Create(path)
	if err != nil {
		b.Error(err)
		return nil
	}
	defer f.Close()
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		select {
		case <-stop:
			return took
		default:
		}
		begun := time.Now()
		_, err := f.Write(make([]byte, 2<<10))
		if err == nil {
			err = unix.Fdatasync(int(f.Fd()))
		}
		if err != nil {
			b.Error(err)
			return took
		}
		took = append(took, time.Since(begun))
	}
}

// mountJournalled makes an ext4 with a journal on a loop device.
func mountJournalled(b *testing.B, disk string) (mnt string) {
	b.Helper()
	d, err := os.MkdirTemp(disk, "berth-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(d) })
	mnt = filepath.Join(d, "mnt")
	script := fmt.Sprintf("mkdir %[1]s; truncate -s 3G %[2]s; mkfs.ext4 -q -E %[3]s %[2]s; mount -o loop %[2]s %[1]s",
		mnt, filepath.Join(d, "disk"), "lazy_itable_init=0,lazy_journal_init=0")
	if out, err := exec.Command("/bin/sh", "-ec", script).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, strings.TrimSpace(string(out)))
	}
	b.Cleanup(func() {
		if err := unix.Unmount(mnt, 0); err != nil {
			b.Error(err)
		}
	})
	return mnt
}
