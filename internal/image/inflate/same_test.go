package inflate

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"testing"

	"berth/internal/image/layer"
)

// header is a gzip header with the flags, and the fields that they ask for.
func header(flags byte) []byte {
	out := []byte{0x1f, 0x8b, 8, flags, 1, 2, 3, 4, 0, 255}
	if flags&4 != 0 {
		out = append(append(out, 5, 0), "extra"...)
	}
	for _, field := range []byte{8, 16} {
		if flags&field != 0 {
			out = append(out, "name or comment\x00"...)
		}
	}
	if flags&2 != 0 {
		out = binary.LittleEndian.AppendUint16(out, uint16(crc32.ChecksumIEEE(out)))
	}
	return out
}

// packed is a member of body with that header.
func packed(head, body []byte) []byte {
	var buf bytes.Buffer
	buf.Write(head)
	w, _ := flate.NewWriter(&buf, 6)
	_, _ = w.Write(body)
	_ = w.Close()
	out := binary.LittleEndian.AppendUint32(buf.Bytes(), crc32.ChecksumIEEE(body))
	return binary.LittleEndian.AppendUint32(out, uint32(len(body)))
}

func flip(b []byte, at int) []byte {
	out := slices.Clone(b)
	out[(at+len(out))%len(out)] ^= 0x55
	return out
}

// byLibrary is what the daemon makes of a stream by itself.
func byLibrary(t testing.TB, in []byte) ([]byte, error) {
	plain, err := layer.Decompress(t.Context(), bytes.NewReader(in), false)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	return io.ReadAll(plain)
}

func byProgram(t testing.TB, p *Program, in []byte) ([]byte, error) {
	s, err := p.Start(t.Context(), bytes.NewReader(in))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return io.ReadAll(s)
}

// agree wants the program to take only what the library takes, and to make the same of it. It says whether the
// program took it.
func agree(t testing.TB, p *Program, name string, in []byte) bool {
	t.Helper()
	want, refused := byLibrary(t, in)
	got, err := byProgram(t, p, in)
	var left *Error
	switch {
	case err != nil && !errors.As(err, &left):
		t.Errorf("%s: %v is no error of the program", name, err)
	case err == nil && refused != nil:
		t.Errorf("%s: the program takes what the library refuses: %v", name, refused)
	case err == nil && !bytes.Equal(got, want):
		t.Errorf("%s: the program makes %d bytes, the library %d others", name, len(got), len(want))
	}
	return err == nil
}

// TestSame has the program and the library read the same streams. What the library refuses, the program must not
// take. What an ordinary builder makes, the program must take.
func TestSame(t *testing.T) {
	p := testProgram(t, "")
	a, b := sample(t, 30_000), sample(t, 3<<20)[1<<20:]
	small := packed(header(0), a)
	gz, empty, nuls := packed(header(0), b), packed(header(0), nil), make([]byte, 100_000)
	zeros := packed(header(0), make([]byte, 20<<20))
	for name, in := range map[string][]byte{
		"plain": gz, "empty": empty, "small": packed(header(0), a), "zeros": zeros,
		"FTEXT":    packed(header(1), b),
		"FEXTRA":   packed(header(4), b),
		"FNAME":    packed(header(8), b),
		"FCOMMENT": packed(header(16), b),
		"FHCRC":    packed(header(2), b), "all fields": packed(header(31), b),
		"members":                               slices.Concat(packed(header(0), a), gz),
		"members with fields":                   slices.Concat(packed(header(28), a), packed(header(30), b)),
		"empty members":                         slices.Concat(empty, packed(header(0), a), empty, empty, gz, empty),
		"many members":                          slices.Concat(slices.Repeat([][]byte{packed(header(0), a)}, 200)...),
		"a length of a whole number of buffers": packed(header(0), sample(t, 4<<20)),
		"ends in NULs":                          packed(header(0), make([]byte, 1<<16)),
	} {
		if !agree(t, p, name, in) {
			t.Errorf("%s: the program leaves it to the library", name)
		}
	}
	for name, in := range map[string][]byte{
		"NULs": slices.Concat(gz, nuls), "one NUL": slices.Concat(gz, nuls[:1]), "text": slices.Concat(gz, []byte("text")),
		"one byte":                     slices.Concat(gz, []byte{0x1f}),
		"a magic":                      slices.Concat(gz, []byte{0x1f, 0x8b}),
		"a header":                     slices.Concat(gz, header(0)),
		"a header with an open name":   slices.Concat(gz, header(8)[:15]),
		"a header with an open field":  slices.Concat(gz, header(4)[:10], []byte{255, 255}),
		"an open stored block":         slices.Concat(gz, header(0), []byte{1, 255, 255, 0, 0}),
		"an open block":                slices.Concat(gz, header(0), []byte{0}),
		"NULs, then a member":          slices.Concat(gz, nuls[:600], gz),
		"text that ends as the member": slices.Concat(gz, []byte("text"), gz[len(gz)-8:]),
		"another method":               packed(flip(header(0), 2), b),
		"another method later":         slices.Concat(gz, packed(flip(header(0), 2), a)),
		"header checksum":              packed(flip(header(2), -1), b),
		"header checksum later":        slices.Concat(gz, packed(flip(header(2), -1), a)),
		"checksum":                     flip(gz, -8),
		"length":                       flip(gz, -4),
		"data":                         flip(gz, len(gz)/2),
		"checksum of the first":        slices.Concat(flip(gz, -8), gz),
		"length of the first":          slices.Concat(flip(gz, -4), gz),
		"checksum of an empty one":     flip(empty, -8),
		"length of an empty one":       flip(empty, -4),
		"no gzip":                      b, "two bytes": gz[:2], "bad block type": slices.Concat(header(0), []byte{7, 0, 0}),
		"distance too far": slices.Concat(header(0), []byte{0x63, 0x00, 0x42, 0, 0}),
	} {
		agree(t, p, name, in)
	}
	// The one known difference. Suits keeps it out of first headers. In later ones it does no harm: what is inflated is
	// the same, and proven by its digest.
	later := slices.Concat(gz, packed(header(0x20), a))
	if _, err := byLibrary(t, later); err == nil {
		t.Error("the library takes reserved flags: this difference is none any more")
	}
	if got, err := byProgram(t, p, later); err != nil || !bytes.Equal(got, slices.Concat(b, a)) {
		t.Errorf("reserved flags in a later header: %d bytes, %v", len(got), err)
	}
	for n := len(small) - 20; n < len(small); n++ {
		agree(t, p, "cut", small[:n])
	}
}

// TestCuts cuts members everywhere, and where the next one begins.
func TestCuts(t *testing.T) {
	p := testProgram(t, "")
	one := packed(header(30), []byte("some content"))
	two := slices.Concat(one, packed(header(2), nil))
	for n := 1; n < len(two); n++ {
		if agree(t, p, "cut", two[:n]) != (n == len(one)) {
			t.Errorf("%d of %d bytes: the program took it, or not, against the library", n, len(two))
		}
	}
}

func TestSuits(t *testing.T) {
	body := sample(t, 1<<20)
	long, short := packed(header(0), body), packed(header(0), []byte("short"))
	for name, c := range map[string]struct {
		in   []byte
		want bool
	}{
		"one long member":       {long, true},
		"with fields":           {packed(header(31), body), true},
		"a bomb":                {packed(header(0), make([]byte, 4<<20)), true},
		"short":                 {short, false},
		"a short one first":     {slices.Concat(short, long), false},
		"reserved flags":        {packed(header(0x40), body), false},
		"another method":        {packed(flip(header(0), 2), body), false},
		"a bad header checksum": {packed(flip(header(2), -1), body), false},
		"bad data":              {slices.Concat(header(0), []byte{7, 7, 7, 7, 7}), false},
		"zstd":                  {[]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0, 0, 0, 0}, false},
		"nothing":               {nil, false},
		"a tar":                 {make([]byte, 1024), false},
	} {
		if got := Suits(c.in[:min(len(c.in), HeadBytes)]); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// FuzzSame has both read anything.
func FuzzSame(f *testing.F) {
	p := testProgram(f, "")
	one, two := packed(header(30), []byte("some content")), packed(header(2), nil)
	f.Add(slices.Concat(one, two))
	f.Add(slices.Concat(one, make([]byte, 3)))
	f.Add(one[:len(one)-3])
	f.Fuzz(func(t *testing.T, in []byte) {
		if !bytes.HasPrefix(in, []byte{0x1f, 0x8b}) || reservedSomewhere(in) {
			t.Skip("another form, or the known difference")
		}
		agree(t, p, "any", in)
	})
}

// reservedSomewhere says whether a header with reserved flags may be in there.
func reservedSomewhere(in []byte) bool {
	for i := range len(in) - 3 {
		if in[i] == 0x1f && in[i+1] == 0x8b && in[i+3]&0xe0 != 0 {
			return true
		}
	}
	return false
}
