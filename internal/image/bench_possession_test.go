package image

import (
	"bytes"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// possessionCases are pulls of a store that has one image already, and what it has then.
var possessionCases = []struct{ name, had, ref string }{
	{"all-is-new", "", "/one:v1"},
	{"another-repository", "/one:v1", "/two:v1"}, // fetches and digests
	{"another-base", "/one:v1", "/one:v2"},       // makes the layer anew from its own tar
	{"another-packing", "/one:v1", "/two:zstd"},  // fetches, unpacks and digests the tar
}

// BenchmarkPossession pulls 160 MB of this machine's /usr, in one layer that is finalized over a small one, onto a
// tmpfs. It tells the median of the processor seconds of each pull, and what the store takes of the disk afterwards.
//
//	go test -run XXX -bench Possession -benchtime 5x ./internal/image
func BenchmarkPossession(b *testing.B) {
	b.Setenv("TMPDIR", "/dev/shm")
	host := startRegistry(b, "")
	whole := packFiles(b, sampleTree(b, "/usr", benchBytes/2), types.OCILayer, packGzip)
	plain := bytes.TrimRight(whole.plain, "\x00")
	plain = append(plain, make([]byte, 512-len(plain)%512)...)
	plain = append(plain, tarOf(b, file("implied/directory/x", "1"))...)
	app := packed{packWith(b, plain, packGzip), plain, types.OCILayer}
	other := packed{packWith(b, plain, packZstd(8<<20)), plain, types.OCILayerZStd}
	for ref, layers := range map[string][]packed{
		"/one:v1": {gz(b, file("base", "1")), app}, "/one:v2": {gz(b, file("base", "2")), app},
		"/two:v1": {gz(b, file("base", "1")), app}, "/two:zstd": {zst(b, file("base", "1")), other},
	} {
		push(b, host+ref, imageOf(b, layers[0], layers[1]))
	}
	seconds, bytes := map[string][]float64{}, map[string]uint64{}
	for b.Loop() {
		for _, c := range possessionCases { // in turns: what else the machine does falls on all of them
			s := open(b, b.TempDir())
			if c.had != "" {
				pull(b, s, host+c.had)
			}
			before := processor()
			pull(b, s, host+c.ref)
			seconds[c.name] = append(seconds[c.name], (processor() - before).Seconds())
			bytes[c.name], _, _ = s.Usage()
			_ = s.Close()
			_ = os.RemoveAll(s.disk.Root)
		}
	}
	for name, all := range seconds {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name+"-cpu-s")
		b.ReportMetric(float64(bytes[name]>>20), name+"-MiB")
	}
}

func packWith(b *testing.B, plain []byte, pack func(io.Writer) (io.WriteCloser, error)) []byte {
	b.Helper()
	var buf bytes.Buffer
	w, err := pack(&buf)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	return buf.Bytes()
}

// processor is what this process has had of the processors.
func processor() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
