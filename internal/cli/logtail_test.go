package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTailOf compares where the last lines begin with what a look from the beginning finds. Lines and their heads lie
// across the blocks that are read, several partial lines make one, and the end of the file may be torn.
func TestTailOf(t *testing.T) {
	for name, end := range map[string]string{
		"whole": "", "torn in the text": stamp + " stdout F to", "torn in the head": stamp[:9], "damaged": "\x00\x00\n",
		"an empty line": "\n", "ends in a partial line": stamp + " stdout P x\n",
	} {
		var text bytes.Buffer
		for i := range 400 {
			tag := "F"
			if i%7 < 2 || i > 100 && i < 140 {
				tag = "P"
			}
			fmt.Fprintf(&text, "%s stdout %s %s\n", stamp, tag, strings.Repeat("x", i*i*i%1999))
		}
		text.WriteString(end)
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		starts, at, begins := []int64{}, int64(0), true
		for line := range bytes.Lines(text.Bytes()) {
			if begins {
				starts = append(starts, at)
			}
			l, _ := parseLog(bytes.TrimSuffix(line, []byte("\n")))
			at, begins = at+int64(len(line)), !l.partial
		}
		if text.Len() < 5*tailBlock {
			t.Fatalf("the log has %d bytes, which are not several blocks", text.Len())
		}
		starts = append(starts, at)
		for n := 0; n < len(starts)+2; n += 1 + n/8 {
			want := starts[max(len(starts)-1-n, 0)]
			if got, err := tailOf(t.Context(), f, n); err != nil || got != want {
				t.Errorf("%s: the last %d of %d lines begin at %d, %v, want %d", name, n, len(starts)-1, got, err, want)
			}
		}
		_ = f.Close()
	}
}

// TestTailReadsTheEndAlone has the last lines behind so much that reading it would take many minutes.
func TestTailReadsTheEndAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	text := "\n" + stamp + " stdout F a\n" + stamp + " stdout F b\n" + stamp + " stdout F c\n"
	if _, err := f.WriteAt([]byte(text), 100<<30); err != nil { // the rest takes no place on the disk
		t.Fatal(err)
	}
	var out bytes.Buffer
	r := &logReader{path: path, out: &out, err: &out, tail: 2}
	if err := r.copy(t.Context()); err != nil || out.String() != "b\nc\n" {
		t.Errorf("%v, %q", err, out.String())
	}
}

// interrupter interrupts whoever writes to it.
type interrupter struct {
	cancel context.CancelFunc
	got    int
}

func (i *interrupter) Write(p []byte) (int, error) {
	i.cancel()
	i.got += len(p)
	return len(p), nil
}

// TestLogsHeedAnInterrupt has ^C come while there is more to read, which ends who follows, too.
func TestLogsHeedAnInterrupt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	line := stamp + " stdout F " + strings.Repeat("x", 1000) + "\n"
	if err := os.WriteFile(path, []byte(strings.Repeat(line, 2000)), 0o644); err != nil {
		t.Fatal(err)
	}
	never := func(context.Context) (bool, error) { return false, nil }
	for _, ended := range []func(context.Context) (bool, error){nil, never} {
		ctx, cancel := context.WithCancel(t.Context())
		out := &interrupter{cancel: cancel}
		r := &logReader{path: path, out: out, err: out, tail: -1, ended: ended}
		err := r.copy(ctx)
		var code *exitError
		interrupted := errors.As(err, &code) && code.code == 130
		if out.got > 200_000 || ended == nil && !interrupted || ended != nil && err != nil {
			t.Errorf("%d bytes came after the interrupt: %v", out.got, err)
		}
		r = &logReader{path: path, out: out, err: out, tail: 1999, ended: ended}
		if err := r.copy(ctx); ended == nil && err == nil {
			t.Error("the search for the last lines went on")
		}
	}
}
