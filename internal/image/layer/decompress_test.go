package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/zstd"

	"berth/internal/fail"
	"berth/internal/limit"
)

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

// zstded is one frame, with its checksum, as a writer that does not know the length ahead makes it.
func zstded(t testing.TB, body []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := zstd.NewWriter(&buf, append([]zstd.EOption{zstd.WithEncoderConcurrency(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(body[:len(body)/2])
	_ = w.Flush()
	_, _ = w.Write(body[len(body)/2:])
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// oneSegment is a frame that says its length, without a window.
func oneSegment(t testing.TB, body []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(body, nil)
}

func skippable(body []byte) []byte {
	out := binary.LittleEndian.AppendUint32([]byte{0x5e, 0x2a, 0x4d, 0x18}, uint32(len(body)))
	return append(out, body...)
}

func decompressed(t testing.TB, r io.Reader) ([]byte, error) {
	t.Helper()
	plain, err := Decompress(t.Context(), r, false)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	return io.ReadAll(plain)
}

// noisy is text that compresses to about half.
func noisy(n int) []byte {
	out := make([]byte, n)
	_, _ = rand.Read(out)
	for i := range out {
		if i%1000 < 500 {
			out[i] = 'x'
		}
	}
	return out
}

func TestDecompressForms(t *testing.T) {
	a, b := noisy(30_000), noisy(200_000)
	ab := slices.Concat(a, b)
	nuls := make([]byte, 100_000)
	emptyGzip, emptyZstd := gzipped(t, nil), oneSegment(t, nil)
	for name, c := range map[string]struct{ in, want []byte }{
		"nothing":      {nil, nil},
		"three bytes":  {[]byte("abc"), []byte("abc")},
		"plain":        {ab, ab},
		"gzip":         {gzipped(t, ab), ab},
		"gzip members": {slices.Concat(gzipped(t, a), gzipped(t, b)), ab},
		"gzip members without content": {
			slices.Concat(emptyGzip, gzipped(t, a), emptyGzip, emptyGzip, gzipped(t, b), emptyGzip), ab},
		"gzip of nothing":     {emptyGzip, nil},
		"gzip, NULs":          {slices.Concat(gzipped(t, ab), nuls), ab},
		"gzip, one NUL":       {slices.Concat(gzipped(t, ab), nuls[:1]), ab},
		"zstd":                {zstded(t, ab), ab},
		"zstd of one segment": {oneSegment(t, ab), ab},
		"zstd frames":         {slices.Concat(zstded(t, a), oneSegment(t, b)), ab},
		"zstd frames of growing windows": {
			slices.Concat(zstded(t, a, zstd.WithWindowSize(1<<10)), zstded(t, b, zstd.WithWindowSize(16<<20))), ab},
		"zstd frames without content": {slices.Concat(emptyZstd, zstded(t, ab), emptyZstd), ab},
		"zstd without checksum":       {zstded(t, ab, zstd.WithEncoderCRC(false)), ab},
		"zstd of repeated bytes":      {zstded(t, nuls), nuls},
		"zstd, frames to skip": {
			slices.Concat(skippable(nil), zstded(t, a), skippable(a), zstded(t, b), skippable(b), skippable(nil)), ab},
		"zstd, only frames to skip": {skippable(a), nil},
		"zstd, NULs":                {slices.Concat(zstded(t, ab), nuls), ab},
	} {
		for how, r := range map[string]io.Reader{"": bytes.NewReader(c.in),
			" in halves":    iotest.HalfReader(bytes.NewReader(c.in)),
			" with its end": iotest.DataErrReader(bytes.NewReader(c.in))} {
			got, err := decompressed(t, r)
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("%s%s: %d bytes, want %d, %v", name, how, len(got), len(c.want), err)
			}
		}
	}
	noWindows(t)
}

// noWindows fails the test when the memory of a window was not given back.
func noWindows(t testing.TB) {
	t.Helper()
	windows.mu.Lock()
	defer windows.mu.Unlock()
	if windows.held != 0 || windows.streams != 0 || len(windows.idle) != 0 {
		t.Errorf("%d bytes of windows are held, %d streams open, %d decoders idle", windows.held, windows.streams,
			len(windows.idle))
	}
	was := debug.SetGCPercent(100)
	debug.SetGCPercent(was)
	if was != collectorPercent() {
		t.Errorf("the collector is left at %d percent, not at %d", was, collectorPercent())
	}
}

// windowHeader is a frame header that asks for a window of 1 << log bytes.
func windowHeader(log byte) []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 1, 0, 0}
}

func TestDecompressRefuses(t *testing.T) {
	body := noisy(50_000)
	flip := func(b []byte, at int) []byte {
		out := slices.Clone(b)
		out[(at+len(out))%len(out)] ^= 0x55
		return out
	}
	gz, zs := gzipped(t, body), zstded(t, body)
	huge := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 4, 0, 0, 0}
	for name, c := range map[string]struct {
		in    []byte
		words string
	}{
		"gzip checksum":         {flip(gz, -8), "gzip: invalid checksum"},
		"gzip length":           {flip(gz, -4), "gzip: invalid checksum"},
		"gzip, then text":       {slices.Concat(gz, []byte("text")), "read gzip stream: after its end"},
		"gzip, then zstd":       {slices.Concat(gz, zs), "read gzip stream: after its end"},
		"gzip, NULs, then gzip": {slices.Concat(gz, make([]byte, 600), gz), "read gzip stream: after its end"},
		"gzip, then a bad member": {slices.Concat(gz, []byte{0x1f, 0x8b, 7, 7, 7, 7, 7, 7, 7, 7}),
			"read gzip stream: gzip: invalid header"},
		"zstd checksum":         {flip(zs, -1), "read zstd stream: "},
		"zstd, then text":       {slices.Concat(zs, []byte("text")), "read zstd stream: after its end"},
		"zstd, then gzip":       {slices.Concat(zs, gz), "read zstd stream: after its end"},
		"zstd, NULs, then zstd": {slices.Concat(zs, make([]byte, 70_000), zs), "read zstd stream: after its end"},
		"zstd, a window of 256 MiB": {windowHeader(28), "window of a zstd stream: 268435456 bytes, more than the " +
			"134217728 bytes allowed"},
		"zstd, a window of 2 GiB":       {windowHeader(31), "window of a zstd stream: 2147483648 bytes"},
		"zstd, a later window of 2 GiB": {slices.Concat(zs, windowHeader(31)), "window of a zstd stream: 2147483648 bytes"},
		"zstd, a segment of 16 GiB":     {huge, "window of a zstd stream: 17179869184 bytes"},
		"zstd, a reserved bit":          {[]byte{0x28, 0xb5, 0x2f, 0xfd, 8, 0, 1, 0, 0}, "read zstd stream: "},
	} {
		_, err := decompressed(t, bytes.NewReader(c.in))
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %q", name, err, c.words)
		}
		if strings.Contains(c.words, "window") && !fail.As[*limit.Error](err) {
			t.Errorf("%s: %v is no error of a limit", name, err)
		}
	}
	noWindows(t)
}

// TestDecompressProven reads frames whose checksum is wrong: they are an error unless a digest proves the content. A
// decoder is used again for both.
func TestDecompressProven(t *testing.T) {
	body := noisy(50_000)
	frame := zstded(t, body)
	frame[len(frame)-1] ^= 0x55
	first, err := Decompress(t.Context(), bytes.NewReader(zstded(t, body)), false) // keeps idle decoders
	if err != nil {
		t.Fatal(err)
	}
	defer noWindows(t)
	defer first.Close()
	for range 2 {
		for _, proven := range []bool{true, false} {
			r, err := Decompress(t.Context(), bytes.NewReader(frame), proven)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			_ = r.Close()
			if proven && (err != nil || !bytes.Equal(got, body)) || !proven && err == nil {
				t.Errorf("proven %v: %d bytes, %v", proven, len(got), err)
			}
		}
	}
}

func TestLargestWindow(t *testing.T) {
	got, err := decompressed(t, bytes.NewReader(windowHeader(27)))
	if err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	noWindows(t)
}

// TestDecompressCut cuts streams everywhere: no part of one passes for the whole.
func TestDecompressCut(t *testing.T) {
	body := noisy(150)
	for name, whole := range map[string][]byte{
		"gzip": gzipped(t, body), "zstd": zstded(t, body), "zstd of one segment": oneSegment(t, body),
		"zstd behind a frame to skip": slices.Concat(skippable(body), zstded(t, body)),
	} {
		for n := 4; n < len(whole); n++ {
			if name == "zstd behind a frame to skip" && n == len(body)+8 {
				continue // whole frames
			}
			_, err := decompressed(t, bytes.NewReader(whole[:n]))
			if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "cut short") {
				t.Errorf("%s, %d of %d bytes: %v", name, n, len(whole), err)
			}
		}
	}
	noWindows(t)
}

func TestDecompressKeepsTheReadersError(t *testing.T) {
	broken := errors.New("the line is dead")
	body := noisy(300_000)
	for name, whole := range map[string][]byte{"plain": body, "gzip": gzipped(t, body), "zstd": zstded(t, body)} {
		for _, n := range []int{0, 3, 5, 1000, 100_000, len(whole)} {
			_, err := decompressed(t, io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken)))
			if !errors.Is(err, broken) {
				t.Errorf("%s, after %d bytes: %v", name, n, err)
			}
		}
	}
	noWindows(t)
}

// indexed packs each entry of a tar by itself, as the forms do that let a reader begin anywhere.
func indexed(t testing.TB, pack func([]byte) []byte, items ...item) []byte {
	t.Helper()
	whole := archive(t, items...)
	var out []byte
	r, start := bytes.NewReader(whole), 0
	tr := tar.NewReader(r)
	for {
		if _, err := tr.Next(); errors.Is(err, io.EOF) {
			return append(out, pack(whole[start:])...)
		} else if err != nil {
			t.Fatal(err)
		}
		here := len(whole) - r.Len()
		out = append(out, pack(whole[start:here])...)
		start = here
	}
}

// TestIndexedForms unpacks eStargz and zstd:chunked layers as what they are to those who know neither.
func TestIndexedForms(t *testing.T) {
	items := []item{dir("d", 0o755), file("d/a", strings.Repeat("one", 5000)), file("d/empty", ""), symlink("d/l", "a"),
		file("d/b", "two")}
	toc := file("stargz.index.json", `{"version":1,"entries":[]}`)
	var footer bytes.Buffer
	w := gzip.NewWriter(&footer)
	w.Extra = append([]byte("SG\x16\x00"), "0000000000000400STARGZ"...)
	_ = w.Close()
	estargz := append(indexed(t, func(b []byte) []byte { return gzipped(t, b) }, append(items, toc)...), footer.Bytes()...)
	chunked := slices.Concat(indexed(t, func(b []byte) []byte { return zstded(t, b) }, items...),
		skippable(zstded(t, []byte(`{"version":1,"entries":[]}`))), skippable(make([]byte, 64)))
	for name, blob := range map[string][]byte{"estargz": estargz, "zstd:chunked": chunked} {
		plain, err := Decompress(t.Context(), bytes.NewReader(blob), false)
		if err != nil {
			t.Fatal(err)
		}
		d := t.TempDir()
		if _, err := Unpack(t.Context(), plain, d, Limits{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = plain.Close()
		want := []string{"d d 755 0:0", "d/a f 644 0:0", "d/b f 644 0:0 two", "d/empty f 644 0:0 ", "d/l -> a"}
		if name == "estargz" {
			want = append(want, "stargz.index.json f 644 0:0 "+toc.body)
		}
		wantTree(t, d, want...)
		proven(t, d)
	}
	noWindows(t)
}

func TestWindowBudget(t *testing.T) {
	b := newWindowBudget(2, time.Hour)
	var giveBack []func()
	for range 2 {
		release, err := b.acquire(t.Context(), OrdinaryWindow)
		if err != nil {
			t.Fatal(err)
		}
		giveBack = append(giveBack, release)
	}
	waited := make(chan error, 2)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { _, err := b.acquire(ctx, OrdinaryWindow); waited <- err }()
	go func() { _, err := b.acquire(t.Context(), OrdinaryWindow); waited <- err }()
	select {
	case <-waited:
		t.Fatal("a third window had no need to wait")
	case <-time.After(20 * time.Millisecond):
	}
	gone := errors.New("gone")
	cancel(gone)
	if err := <-waited; !errors.Is(err, gone) {
		t.Errorf("a caller that left got %v", err)
	}
	giveBack[0]()
	if err := <-waited; err != nil {
		t.Errorf("a window that was given back: %v", err)
	}
}

func TestWindowBudgetLosesPatience(t *testing.T) {
	b := newWindowBudget(1, time.Millisecond)
	for range 3 {
		if _, err := b.acquire(t.Context(), OrdinaryWindow); err != nil {
			t.Fatal(err)
		}
	}
	release, err := b.acquire(t.Context(), limit.ZstdWindow.Limit)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.acquire(ctx, OrdinaryWindow+1); err == nil {
		t.Error("a wide window beside the largest")
	}
	release()
	if _, err := b.acquire(t.Context(), OrdinaryWindow+1); err != nil {
		t.Error(err)
	}
}

// TestDecodersAreKept holds that a stream after another has its decoder, while any stream is open, and none after that.
func TestDecodersAreKept(t *testing.T) {
	blob := zstded(t, noisy(100_000), zstd.WithWindowSize(1<<20))
	open := func() *unzstd {
		s, err := Decompress(t.Context(), bytes.NewReader(blob), false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		return s.(*unzstd)
	}
	first, second := open(), open()
	if windows.held != 2<<20 {
		t.Errorf("%d bytes are held for two windows of 1 MiB", windows.held)
	}
	_ = first.Close()
	_ = first.Close()
	third := open()
	if third.dec != first.dec || third.dec == second.dec {
		t.Error("the third stream has not the decoder of the first")
	}
	_ = third.Close()
	_ = second.Close()
	noWindows(t)
}
