package inflate

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/helper"
	"berth/internal/image/layer"
	"berth/test/isolate"
)

// testProgram is igzip, or a program in its place.
func testProgram(t testing.TB, path string) *Program {
	t.Helper()
	if _, _, err := Find(""); err != nil {
		t.Skip("igzip or prlimit is not installed: hack/setup test does it: ", err)
	}
	g := isolate.Group(t)
	p, err := New("", (&helper.Runner{Root: g.Path()}).RunStarted, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if path != "" {
		p.Path = path
	}
	return p
}

func gzipped(t testing.TB, body []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = w.Write(body)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// cpu is the processor time of this process and of those it has waited for.
func cpu() (total int64) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		_ = unix.Getrusage(who, &u)
		total += u.Utime.Nano() + u.Stime.Nano()
	}
	return total
}

// BenchmarkInflate tells from which size on the program is worth starting: processor time and time of streams of
// several sizes, by it and by the library, of which the program stands beside each other.
func BenchmarkInflate(b *testing.B) {
	p := testProgram(b, "")
	body := sample(b, 16<<20)
	for _, mib := range []int{0, 1, 2, 4, 8, 32} {
		var packed []byte
		if n := mib << 20; n == 0 {
			packed = gzipped(b, []byte("x"))
		} else {
			packed = gzipped(b, body[:min(2*n, len(body))])
			for whole := packed; len(packed) < n; {
				packed = append(packed, whole...)
			}
		}
		for name, open := range map[string]func() (io.ReadCloser, error){
			"program": func() (io.ReadCloser, error) { return p.Start(b.Context(), bytes.NewReader(packed)) },
			"library": func() (io.ReadCloser, error) { return layer.Decompress(b.Context(), bytes.NewReader(packed), false) },
		} {
			b.Run(fmt.Sprintf("%s/%dMiB", name, mib), func(b *testing.B) {
				before := cpu()
				for b.Loop() {
					s, err := open()
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.Copy(io.Discard, s); err != nil {
						b.Fatal(err)
					}
					s.Close()
				}
				b.ReportMetric(float64(cpu()-before)/1e6/float64(b.N), "cpu-ms/op")
				b.ReportMetric(float64(len(packed))/(1<<20), "MiB")
			})
		}
	}
}

// sample are n bytes of this test's own program.
func sample(t testing.TB, n int) []byte {
	t.Helper()
	out, err := os.ReadFile(os.Args[0])
	for err == nil && len(out) < n {
		out = append(out, out...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out[:n]
}
