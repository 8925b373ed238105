package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const stamp = "2024-05-01T10:00:00.000000001Z"

func TestParseLog(t *testing.T) {
	for _, c := range []struct {
		line string
		want string // stream, partial, text; empty for an error
	}{
		{stamp + " stdout F hello", "stdout false hello"},
		{stamp + " stderr P hel", "stderr true hel"},
		{stamp + " stdout F ", "stdout false "},
		{stamp + " stdout F  two  spaces ", "stdout false  two  spaces "},
		{stamp + " stdout P:x rest", "stdout true rest"},
		{"2024-05-01T10:00:00+02:00 stdout F x", "stdout false x"},
		{stamp + " stdout F", ""},
		{stamp + " stdin F x", ""},
		{"yesterday stdout F x", ""},
		{"", ""},
	} {
		l, err := parseLog([]byte(c.line))
		got := fmt.Sprintf("%s %t %s", l.stream, l.partial, l.text)
		if c.want == "" && err == nil || c.want != "" && (err != nil || got != c.want) {
			t.Errorf("%q: got %q, error %v, want %q", c.line, got, err, c.want)
		}
	}
}

func TestLogReader(t *testing.T) {
	lines := stamp + " stdout F one\n" + stamp + " stderr F two\n" + stamp + " stdout P thr\n" + stamp + " stdout F ee\n"
	for _, c := range []struct {
		name, log string
		tail      int
		times     bool
		out, err  string
	}{
		{"all", lines, -1, false, "one\nthree\n", "two\n"},
		{"times", lines, -1, true, stamp + " one\n" + stamp + " three\n", stamp + " two\n"},
		{"none", lines, 0, false, "", ""},
		{"last", lines, 1, false, "three\n", ""},
		{"two", lines, 2, false, "three\n", "two\n"},
		{"more than there are", lines, 9, false, "one\nthree\n", "two\n"},
		{"torn inside the head", lines + "2024-05-01T10:0", -1, false, "one\nthree\n", "two\n"},
		{"torn inside the text", lines + stamp + " stdout F fo", -1, false, "one\nthree\nfo\n", "two\n"},
		{"empty", "", 5, false, "", ""},
		{"ends in a partial line", stamp + " stdout P x\n", -1, false, "x", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := t.TempDir() + "/log"
			if err := os.WriteFile(path, []byte(c.log), 0o644); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			r := &logReader{path: path, out: &out, err: &errs, tail: c.tail, timestamps: c.times}
			if err := r.copy(t.Context()); err != nil {
				t.Fatal(err)
			}
			if out.String() != c.out || errs.String() != c.err {
				t.Errorf("out %q, err %q", out.String(), errs.String())
			}
		})
	}
}

func TestLogThatIsNoneIsRefused(t *testing.T) {
	path := t.TempDir() + "/log"
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &logReader{path: path, out: &bytes.Buffer{}, err: &bytes.Buffer{}, tail: -1}
	if err := r.copy(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// TestLogGoesOnBehindDamage has lines that no runtime wrote among others, and tells of them once.
func TestLogGoesOnBehindDamage(t *testing.T) {
	path := t.TempDir() + "/log"
	nul := strings.Repeat("\x00", 100)
	text := stamp + " stdout F one\n" + nul + "\n" + nul + stamp + " stdout F lost\n" + strings.Repeat("x", 3*mostLine) +
		"\n\n" + stamp + " stdout F two\n" + nul
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	r := &logReader{path: path, out: &out, err: &errs, tail: -1}
	if err := r.copy(t.Context()); err != nil || out.String() != "one\ntwo\n" {
		t.Errorf("%v, %q", err, out.String())
	}
	said := strings.Split(strings.TrimSpace(errs.String()), "\n")
	if len(said) != 2 || !strings.Contains(said[0], path+": not a line of a container's log: \"\\x00") ||
		!strings.HasSuffix(said[1], path+": 4 damaged lines in all were left out") {
		t.Errorf("%q", said)
	}
}

// TestFollowOfALogThatIsEmptied goes on at the beginning of a file that somebody made shorter.
func TestFollowOfALogThatIsEmptied(t *testing.T) {
	path := t.TempDir() + "/log"
	first := stamp + " stdout F " + strings.Repeat("x", 1000) + "\n" + stamp + " stdout F to"
	if err := os.WriteFile(path, []byte(first), 0o644); err != nil {
		t.Fatal(err)
	}
	out, errs, asked := &safeBuffer{}, &safeBuffer{}, 0
	r := &logReader{path: path, out: out, err: errs, tail: -1, ended: func(context.Context) (bool, error) {
		if asked++; asked == 1 { // all of it has been read
			return false, os.WriteFile(path, []byte(stamp+" stdout F new\n"), 0o644)
		}
		return true, nil
	}}
	want := strings.Repeat("x", 1000) + "\nto\nnew\n"
	if err := r.copy(t.Context()); err != nil || out.String() != want || !strings.Contains(errs.String(), "shorter") {
		t.Errorf("%v, %q, %q", err, out.String(), errs.String())
	}
}

// TestFollowTellsOfMissedFiles has a kubelet rotate the log three times while the reader is stopped, and once, and
// compress what it rotated.
func TestFollowTellsOfMissedFiles(t *testing.T) {
	for name, c := range map[string]struct {
		script string // rotations of the log at $L, after which it has another line
		want   string
	}{
		"once, compressed": {"mv $L $L.20260101-000001; cp $L.20260101-000001 x; rm $L.2026*1; " +
			"mv x $L.20260101-000001.gz", ""},
		"once":        {"mv $L $L.20260101-000001", ""},
		"three times": {"for i in 1 2 3; do mv $L $L.20260101-00000$i; echo >$L; done", "the lines of 2 files"},
		"three times, compressed": {"for i in 1 2 3; do mv $L $L.20260101-00000$i; echo >$L; done; " +
			"for i in 1 2; do cp $L.20260101-00000$i x; rm $L.20260101-00000$i; mv x $L.20260101-00000$i.gz; done",
			"the lines of 2 files"},
		"by another": {"mv $L.1 $L.2; mv $L $L.1", ""},
	} {
		dir := t.TempDir()
		path := dir + "/0.log"
		for _, file := range []string{path, path + ".1", path + ".20251231-000000"} {
			if err := os.WriteFile(file, []byte(stamp+" stdout F one\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		out, errs, asked := &safeBuffer{}, &safeBuffer{}, 0
		r := &logReader{path: path, out: out, err: errs, tail: -1, ended: func(context.Context) (bool, error) {
			if asked++; asked > 1 {
				return true, nil
			}
			cmd := exec.Command("sh", "-ec", c.script+"; echo '"+stamp+" stdout F two' >$L")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "L="+path)
			return false, cmd.Run()
		}}
		err := r.copy(t.Context())
		said := errs.String()
		if err != nil || out.String() != "one\ntwo\n" || !strings.Contains(said, c.want) || c.want == "" && said != "" {
			t.Errorf("%s: %v, %q, %q", name, err, out.String(), said)
		}
	}
}

// safeBuffer is written by one goroutine and read by another.
type safeBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestFollowLosesNothing writes 300 lines through rotations as a kubelet makes them: rename, then a new file. Lines go
// to the old file until the new one is there.
func TestFollowLosesNothing(t *testing.T) {
	path := t.TempDir() + "/log"
	const lines, perFile = 300, 37
	var over atomic.Bool
	out := &safeBuffer{}
	go func() {
		var f *os.File
		for i := range lines {
			if i%perFile == 0 {
				old := f
				if f != nil {
					_ = os.Rename(path, fmt.Sprintf("%s.%d", path, i))
					fmt.Fprintf(old, "%s stdout P %d-\n", stamp, i) // between rename and reopen
				}
				f, _ = os.Create(path)
				if old != nil {
					_ = old.Close()
				}
			}
			text := fmt.Sprintf("%s stdout F %d\n", stamp, i)
			_, _ = f.WriteString(text[:20])
			time.Sleep(time.Millisecond)
			_, _ = f.WriteString(text[20:])
			if i%perFile == perFile-1 { // rotations are minutes apart
				until(func() bool { return strings.HasSuffix(out.String(), fmt.Sprintf("\n%d\n", i)) })
			}
		}
		over.Store(true)
	}()
	r := &logReader{path: path, out: out, tail: -1, ended: func(context.Context) (bool, error) {
		return over.Load(), nil
	}}
	if err := r.copy(t.Context()); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i := range lines {
		if i > 0 && i%perFile == 0 {
			fmt.Fprintf(&want, "%d-", i)
		}
		fmt.Fprintf(&want, "%d\n", i)
	}
	if out.String() != want.String() {
		t.Errorf("%d bytes came, %d were written", len(out.String()), want.Len())
	}
}

// TestAdvanceBesideRotations has the log renamed at any moment, also between a look at it and its opening.
func TestAdvanceBesideRotations(t *testing.T) {
	path := t.TempDir() + "/log"
	var over atomic.Bool
	rotated := make(chan error, 1)
	go func() {
		var err error
		for err == nil && !over.Load() {
			err = errors.Join(os.WriteFile(path, nil, 0o644), os.Rename(path, path+".1"))
		}
		rotated <- err
	}()
	r := &logReader{path: path, tail: -1}
	for range 20000 {
		if _, err := r.advance(t.Context()); err != nil {
			t.Error(err)
			break
		}
	}
	r.closeFile()
	over.Store(true)
	if err := <-rotated; err != nil {
		t.Error(err)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r := &logReader{path: t.TempDir() + "/log", tail: -1, ended: func(context.Context) (bool, error) { return false, nil }}
	if err := r.copy(ctx); err != nil {
		t.Error(err)
	}
}
