package helper

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"berth/internal/pipe"
)

// drainTimeout bounds the reading of what is still in a pipe when every process of the group is gone. Only a process
// that got the pipe from outside the group can make it last that long.
const drainTimeout = 100 * time.Millisecond

// streams gives a command real pipes in place of readers and writers, so that exec.Cmd.Wait waits for the process
// alone.
type streams struct {
	tail    Tail
	child   []*os.File // the command's ends: ours to close once it has started
	outputs []*os.File // our ends of what it writes
	input   *os.File   // our end of what it reads
	copying sync.WaitGroup
}

func (s *streams) attach(cmd *exec.Cmd) error {
	shared := sameWriter(cmd.Stdout, cmd.Stderr)
	if err := s.feed(cmd); err != nil {
		return err
	}
	if _, isFile := cmd.Stdout.(*os.File); cmd.Stdout != nil && !isFile {
		sink := cmd.Stdout
		if shared {
			sink = io.MultiWriter(&s.tail, sink)
		}
		w, err := s.collect(sink)
		if err != nil {
			return err
		}
		cmd.Stdout = w
	}
	if _, isFile := cmd.Stderr.(*os.File); isFile {
		return nil
	}
	if shared && cmd.Stderr != nil {
		cmd.Stderr = cmd.Stdout
		return nil
	}
	var sink io.Writer = &s.tail
	if cmd.Stderr != nil {
		sink = io.MultiWriter(&s.tail, cmd.Stderr)
	}
	w, err := s.collect(sink)
	if err != nil {
		return err
	}
	cmd.Stderr = w
	return nil
}

// sameWriter reports whether both are one writer, whose Write must then not be called concurrently.
func sameWriter(a, b io.Writer) bool {
	defer func() { _ = recover() }() // of types that cannot be compared
	return a == b
}

func (s *streams) feed(cmd *exec.Cmd) error {
	if _, isFile := cmd.Stdin.(*os.File); cmd.Stdin == nil || isFile {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	from := cmd.Stdin
	cmd.Stdin, s.input, s.child = r, w, append(s.child, r)
	s.copying.Go(func() {
		_, _ = io.Copy(w, from) // it ends early when there is no reader any more
		_ = w.Close()
	})
	return nil
}

// collect returns the end of a new pipe for the command to write to; what comes out of the other end goes to sink.
func (s *streams) collect(sink io.Writer) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.child, s.outputs = append(s.child, w), append(s.outputs, r)
	s.copying.Go(func() {
		_, _ = pipe.Copy(sink, r)
		_ = r.Close()
	})
	return w, nil
}

// started closes our copies of the command's ends.
func (s *streams) started() {
	for _, f := range s.child {
		_ = f.Close()
	}
	s.child = nil
}

// finish returns when all that the processes wrote has been copied, or soon after if one of them is left.
func (s *streams) finish() {
	s.started()
	deadline := time.Now().Add(drainTimeout)
	for _, r := range s.outputs {
		_ = r.SetReadDeadline(deadline)
	}
	if s.input != nil {
		_ = s.input.SetWriteDeadline(time.Now())
	}
	s.copying.Wait()
}

const (
	tailBytes = 4 << 10
	tailLines = 8
)

// Tail keeps the end of what is written to it, as an Error does of a program's standard error.
type Tail struct {
	mu   sync.Mutex
	kept []byte
}

// Write takes the next piece; it never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-tailBytes):]...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// Lines returns the last lines, as UTF-8.
func (t *Tail) Lines() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(t.kept), "?")), "\n")
	return strings.Join(all[max(0, len(all)-tailLines):], "\n")
}
