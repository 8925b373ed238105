package inflate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/timeouts"
)

// script is a program in igzip's place. It cannot fork: what it does is up to the shell.
func script(t *testing.T, text string) *Program {
	t.Helper()
	path := filepath.Join(publicDir(t), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return testProgram(t, path)
}

// publicDir is one that nobody can reach.
func publicDir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("/tmp", "berth-inflate-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLiars has programs that do not do what they should: none passes for one that did, and the reason is said.
func TestLiars(t *testing.T) {
	in := packed(header(0), sample(t, 3<<20))
	const unproven = "it did not come to the end of the stream"
	for _, c := range []struct{ name, text, words string }{
		{"says nothing", "exit 0", unproven},
		{"fails", "echo no memory >&2; exit 3", "exit status 3: no memory"},
		{"is killed", "kill -9 $$", "signal: killed"},
		{"says something else", "echo something else, which is longer than a mark", unproven},
		{"stops early", "exec head -c 100000", unproven},
		{"passes the stream on", "exec cat", unproven},
		{"inflates all and fails", "trap 'kill -9 $$' 0; exit 1", "signal: killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := script(t, c.text)
			_, err := byProgram(t, p, in)
			var left *Error
			if !errors.As(err, &left) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v, want %q", err, c.words)
			}
		})
	}
}

// TestFlood has a program that writes more to its standard error than a pipe holds, and then does its work.
func TestFlood(t *testing.T) {
	text := strings.Repeat("echo "+strings.Repeat("flood ", 200)+" >&2\n", 200)
	p := script(t, text+"exec "+testProgram(t, "").Path+` "$@"`)
	body := sample(t, 1<<20)
	if got, err := byProgram(t, p, packed(header(0), body)); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// endless is a stream that never ends, of zeros.
type endless struct{ begun chan struct{} }

func (e *endless) Read(p []byte) (int, error) {
	select {
	case <-e.begun:
	default:
		close(e.begun)
	}
	clear(p)
	return len(p), nil
}

// TestEnds ends the context, or closes the stream, while a program works, is stopped, or floods: nothing of it is
// left when Close returns.
func TestEnds(t *testing.T) {
	for name, text := range map[string]string{
		"stopped": "kill -STOP $$", "busy": "while :; do :; done", "floods": "while :; do echo flood >&2; done",
		"deaf":   "trap '' TERM INT HUP PIPE; while :; do :; done",
		"writes": "while :; do echo more; done",
		"reads":  "while read -r line; do :; done",
	} {
		for _, how := range []string{"context", "close"} {
			t.Run(name+" "+how, func(t *testing.T) {
				p := script(t, text)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				in := &endless{make(chan struct{})}
				s, err := p.Start(ctx, in)
				if err != nil {
					t.Fatal(err)
				}
				<-in.begun
				if how == "context" {
					cancel()
					if _, err := io.Copy(io.Discard, s); err == nil {
						t.Error("the stream came to a good end")
					}
				}
				done := make(chan struct{})
				go func() { _ = s.Close(); close(done) }()
				select {
				case <-done: // testProgram looks for what is left
				case <-time.After(timeouts.For(time.Minute)):
					t.Fatal("Close does not return")
				}
			})
		}
	}
}

// TestConfined asks the shell in the program's place what it is allowed.
func TestConfined(t *testing.T) {
	victim := filepath.Join(publicDir(t), "file")
	if err := os.WriteFile(victim, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(victim, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BERTH_SECRET", "x")
	for _, c := range []struct{ name, text, want string }{
		{"user", "grep -E '^[UG]id:' /proc/self/status", `Uid:(\s+65534){4}\nGid:(\s+65534){4}\n$`},
		{"groups", "grep Groups: /proc/self/status", `^Groups:\s*$`},
		{"capabilities", "grep -E 'Cap(Inh|Prm|Eff|Amb):' /proc/self/status", `^(Cap...:\s0+\n){4}$`},
		{"new privileges", "grep NoNewPrivs /proc/self/status", `NoNewPrivs:\s1`},
		{"environment", "tr '\\0' '\\n' </proc/self/environ", `^(PWD=/\n)?$`},
		{"directory", "pwd", `^/\n$`},
		{"memory", "grep 'Max address space' /proc/self/limits", `268435456\s+268435456`},
		{"files", "grep 'Max file size' /proc/self/limits", `\s0\s+0\s`},
		{"core", "grep 'Max core file size' /proc/self/limits", `\s0\s+0\s`},
		{"processes", "grep 'Max processes' /proc/self/limits", `\s0\s+0\s`},
		{"out of memory", "cat /proc/self/oom_score_adj", `^1000\n$`},
		{"network", "cat /proc/self/net/dev", `\|bytes[^\n]*\n\s*lo:[^\n]*\n$`},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The shell becomes the program that looks, since it cannot fork, when it is fed.
			s, err := script(t, "read -r line; exec "+c.text).Start(t.Context(), strings.NewReader("go on\n"))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			pipe, _ := s.Output()
			got, err := io.ReadAll(pipe)
			if err != nil || !regexp.MustCompile(c.want).Match(got) {
				t.Errorf("%s, %v, want %s", got, err, c.want)
			}
		})
	}
	for name, text := range map[string]string{
		"write a file": "echo x >" + victim, "make a file": "echo x >" + victim + ".new", "fork": "(:)",
	} {
		p := script(t, text+" && exec sleep 1000")
		if _, err := byProgram(t, p, nil); err == nil {
			t.Errorf("%s: it could", name)
		}
	}
	if st, err := os.Stat(victim); err != nil || st.Size() != 0 {
		t.Error("it has written to a file", err)
	}
}

// TestDescriptors wants the program to have its three streams, and beside them only what this process was itself left
// by who started it.
func TestDescriptors(t *testing.T) {
	s, err := script(t, "read -r line; exec ls -l /proc/self/fd").Start(t.Context(), strings.NewReader("go on\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pipe, _ := s.Output()
	got, err := io.ReadAll(pipe)
	links := regexp.MustCompile(`(?m) (\d+) -> (.*)$`).FindAllStringSubmatch(string(got), -1)
	if err != nil || len(links) < 3 {
		t.Fatalf("%q, %v", got, err)
	}
	for _, link := range links {
		fd, _ := strconv.Atoi(link[1])
		if fd <= 2 || strings.HasPrefix(link[2], "/proc/") { // the directory that ls reads
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			t.Errorf("it has the descriptor %d of this process", fd)
		}
	}
}

// TestReadersError tells the reason of a stream that breaks off, which is not the program's.
func TestReadersError(t *testing.T) {
	p := testProgram(t, "")
	broken := errors.New("the line is dead")
	in := packed(header(0), sample(t, 3<<20))
	for _, n := range []int{0, 5, 100_000, len(in) - 1, len(in)} {
		s, err := p.Start(t.Context(), io.MultiReader(bytes.NewReader(in[:n]), iotest.ErrReader(broken)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, s); !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v", n, err)
		}
		_ = s.Close()
	}
}

// TestNotThere wants nothing of the stream to be read when the program does not start.
func TestNotThere(t *testing.T) {
	p := testProgram(t, "/nonexistent/igzip")
	in := bytes.NewReader(packed(header(0), nil))
	before := in.Len()
	s, err := p.Start(t.Context(), in)
	if err == nil { // it is prlimit that starts, and says what is missing
		_, err = io.ReadAll(s)
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/igzip") {
		t.Error(err)
	}
	p.Confine = []string{"/nonexistent/prlimit"}
	if _, err := p.Start(t.Context(), in); err == nil || in.Len() != before && in.Len() != 0 {
		t.Errorf("%v, %d bytes are left", err, in.Len())
	}
	if p.Usable(t.Context()) {
		t.Error("it is usable")
	}
}

// TestGivenUp tries a program before its first stream, and gives it up when streams fail in a row.
func TestGivenUp(t *testing.T) {
	if script(t, "exec cat").Usable(t.Context()) {
		t.Error("a program that inflates nothing is usable")
	}
	p := testProgram(t, "")
	for range MaxFailures - 1 {
		p.Inflated(errors.New("no"))
	}
	p.Inflated(nil)
	for range MaxFailures - 1 {
		p.Inflated(errors.New("no"))
	}
	if !p.Usable(t.Context()) {
		t.Error("it is given up, though it inflated a stream in between")
	}
	p.Inflated(errors.New("no"))
	if p.Usable(t.Context()) {
		t.Error("it is not given up")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if p := testProgram(t, ""); p.Usable(ended) || !p.Usable(t.Context()) {
		t.Error("a trial that was cut off counts")
	}
}

// TestUnmarked reads with every size of buffer.
func TestUnmarked(t *testing.T) {
	mark := newMark()
	for _, n := range []int{0, 1, 31, 32, 33, 1000, 10_000} {
		body := sample(t, n)
		whole := append(bytes.Clone(body), mark...)
		for _, wrap := range []func(io.Reader) io.Reader{
			func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader,
		} {
			if err := iotest.TestReader(Unmarked(wrap(bytes.NewReader(whole)), mark), body); err != nil {
				t.Errorf("%d bytes: %v", n, err)
			}
			for _, bad := range [][]byte{whole[:len(whole)-1], append(bytes.Clone(whole), 0), body} {
				var left *Error
				if _, err := io.ReadAll(Unmarked(wrap(bytes.NewReader(bad)), mark)); !errors.As(err, &left) {
					t.Errorf("%d bytes, without the mark: %v", n, err)
				}
			}
		}
	}
}

// TestManyAtOnce leaves no goroutine and no descriptor.
func TestManyAtOnce(t *testing.T) {
	p := testProgram(t, "")
	body := sample(t, 1<<20)
	in := packed(header(0), body)
	if _, err := byProgram(t, p, in); err != nil {
		t.Fatal(err)
	}
	files, routines := openFiles(t), runtime.NumGoroutine()
	done := make(chan error)
	for range 8 {
		go func() {
			got, err := byProgram(t, p, in)
			if err == nil && !bytes.Equal(got, body) {
				err = errors.New("it is another's")
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for end := time.Now().Add(timeouts.For(time.Minute)); ; time.Sleep(time.Millisecond) {
		if openFiles(t) <= files && runtime.NumGoroutine() <= routines {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, before %d; %d goroutines, before %d",
				openFiles(t), files, runtime.NumGoroutine(), routines)
		}
	}
}

func openFiles(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
