package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/image/layer"
)

// TestLargeLayerNeedsNoMemory takes layers of 192 and 384 MiB through all stages of a pull and watches the heap. The
// file in it is marked as sparse, so that the disk of the test does not have to hold it. The blob repeats one small
// compressed piece, which is cheap to make.
func TestLargeLayerNeedsNoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("digests half a gigabyte")
	}
	const chunk = 16 << 20
	for _, form := range []struct {
		name   string
		chunks int64
		pack   func(io.Writer) io.WriteCloser
		crew   Crew
	}{
		{"gzip", 12, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, nil},
		{"zstd", 24, func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z }, nil},
		{"gzip in a process", 12, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, testCrew()},
	} {
		t.Run(form.name, func(t *testing.T) {
			chunks, pack := form.chunks, form.pack
			head, body := part(pack, sparseHeader(t, "big", chunk*chunks)), part(pack, make([]byte, chunk))
			end := part(pack, make([]byte, 1024))
			parts := []io.Reader{bytes.NewReader(head)}
			for range chunks {
				parts = append(parts, bytes.NewReader(body))
			}
			size := int64(len(head)+len(end)) + chunks*int64(len(body))
			all := io.MultiReader(append(parts, bytes.NewReader(end))...)
			blob := newBlobReader(all, ocispec.Descriptor{Size: size}, func(int64) {})

			s := open(t, t.TempDir(), withCrew(form.crew))
			dir, discard, err := s.disk.NewIngest("pull.ingest")
			if err != nil {
				t.Fatal(err)
			}
			defer discard()
			highest := watchHeap()
			_, err = s.pipeline.inflate(t.Context(), blob, layerRequest{desc: blob.desc, diffID: digest.FromBytes(nil)}, dir)
			if top := highest(); top > 24<<20 {
				t.Errorf("%d MiB of the heap were in use", top>>20)
			}
			if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, layer.FS, "big"), &st); err != nil || st.Size != chunk*chunks ||
				st.Blocks > 1000 {
				t.Errorf("%d bytes in %d blocks, %v", st.Size, st.Blocks, err)
			}
		})
	}
}

func part(pack func(io.Writer) io.WriteCloser, body []byte) []byte {
	var buf bytes.Buffer
	w := pack(&buf)
	_, _ = w.Write(body)
	_ = w.Close()
	return buf.Bytes()
}

// sparseHeader is the header of a file in GNU's old sparse form, all of whose bytes are in the archive nonetheless.
func sparseHeader(t *testing.T, name string, size int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	err := tar.NewWriter(&buf).WriteHeader(
		&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size, Format: tar.FormatGNU})
	if err != nil {
		t.Fatal(err)
	}
	b := buf.Bytes()[:512]
	b[156] = tar.TypeGNUSparse
	copy(b[386:], fmt.Sprintf("%011o\x00%011o\x00", 0, size)) // the one piece
	copy(b[483:], fmt.Sprintf("%011o\x00", size))
	copy(b[148:], strings.Repeat(" ", 8))
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// watchHeap looks at what is in use of the heap again and again until the function it returns is called, which says by
// how much that grew at most. Garbage does not count: how much of it gathers depends on what earlier tests left.
func watchHeap() (highest func() uint64) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	look := func() uint64 { runtime.GC(); metrics.Read(sample); return sample[0].Value.Uint64() }
	before, top := look(), uint64(0)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			top = max(top, look())
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-done
		return max(top, before) - before
	}
}
