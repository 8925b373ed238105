package image

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// BenchmarkPull pulls 320 MB in 6 layers, half of it random and half text, onto a tmpfs:
//
//	go test -run XXX -bench Pull -benchtime 3x ./internal/image
func BenchmarkPull(b *testing.B) {
	b.Setenv("TMPDIR", "/dev/shm")
	host := startRegistry(b, "")
	for form, pack := range map[string]func(testing.TB, ...entry) packed{"gzip": gz, "zstd": zst} {
		var layers []v1.Layer
		for l := range 6 {
			layers = append(layers, pack(b, benchFiles(l)...))
		}
		push(b, host+"/bench:"+form, imageOf(b, layers...))
	}
	for _, form := range []string{"gzip", "zstd"} {
		b.Run(form, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command(os.Args[0], "-test.run=TestBenchChild", "-test.v")
				cmd.Env = append(os.Environ(), "BENCH_ROOT="+b.TempDir(), "BENCH_REF="+host+"/bench:"+form)
				out, err := cmd.Output()
				if err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				for _, line := range strings.Split(string(out), "\n") {
					var name string
					var v float64
					if n, _ := fmt.Sscanf(line, "metric %s %f", &name, &v); n == 2 {
						b.ReportMetric(v, name)
					}
				}
			}
		})
	}
}

// TestBenchChild is the pull of BenchmarkPull, in a process of its own so that its memory is its own.
func TestBenchChild(t *testing.T) {
	if os.Getenv("BENCH_ROOT") == "" {
		t.Skip("it is the child of BenchmarkPull")
	}
	s := open(t, os.Getenv("BENCH_ROOT"))
	start := time.Now()
	img := pull(t, s, os.Getenv("BENCH_REF"))
	wall := time.Since(start)
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	fmt.Printf("\nmetric s/pull %f\nmetric cpu-s/pull %f\nmetric peak-MB %f\nmetric blob-MB %f\n", wall.Seconds(),
		float64(u.Utime.Nano()+u.Stime.Nano())/1e9, float64(peak())/1024, float64(img.Size)/(1<<20))
}

// benchFiles are 53 MB in files of some 64 KB.
func benchFiles(layer int) []entry {
	out := []entry{folder("d" + strconv.Itoa(layer))}
	text := strings.Repeat("the quick brown fox jumps over the lazy dog; ", 1500)
	for i := range 820 {
		noise := make([]byte, 32<<10)
		_, _ = rand.Read(noise)
		body := string(noise) + fmt.Sprint(i, text)[:32<<10]
		out = append(out, file(fmt.Sprintf("d%d/f%d", layer, i), body))
	}
	return out
}

// peak is the high-water mark of this process's memory in KB.
func peak() int {
	raw, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(raw), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}
