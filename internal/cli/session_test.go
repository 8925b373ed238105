package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"berth/internal/admin"
)

// TestRestOfTheOutput has a reader take longer for what has come than output may be missing, and a container whose
// output is held open by a process that says nothing.
func TestRestOfTheOutput(t *testing.T) {
	const grace = 100 * time.Millisecond
	s, end := &session{done: make(chan error, 1)}, errors.New("the end")
	r, w := io.Pipe()
	go func() {
		streams := admin.Streams{Out: w}
		s.shown.through(&streams)
		_, _ = streams.Out.Write([]byte("x")) // which ends when it is read
		s.done <- end
	}()
	go func() {
		time.Sleep(5 * grace)
		_, _ = r.Read(make([]byte, 1))
	}()
	for !s.shown.writing.Load() {
		time.Sleep(time.Millisecond)
	}
	if err := s.rest(grace); err != end {
		t.Errorf("the rest was not waited for: %v", err)
	}
	began := time.Now()
	if err := s.rest(grace); err != nil || time.Since(began) < grace {
		t.Errorf("a silent process: %v after %v", err, time.Since(began))
	}
}

// TestRunThatIsBehind has the daemon send no more output, because it was not taken: the rest of it comes from the log,
// once, and the input goes on. Where the log has not all of it, that is told.
func TestRunThatIsBehind(t *testing.T) {
	for name, limited := range map[string]bool{"all in the log": false, "a limited log": true} {
		d, logs := runnable(t)
		typed, typist := io.Pipe()
		told := make(chan string, 1)
		d.limitedLogs = limited
		d.attach = func(recv func() (*admin.AttachInput, error), send func(*admin.AttachOutput) error) error {
			_ = send(&admin.AttachOutput{Ready: true})
			_ = send(&admin.AttachOutput{Stdout: []byte("one\ntw"), Stderr: []byte("oo")})
			_ = send(&admin.AttachOutput{Behind: true})
			for text := ""; ; {
				in, err := recv()
				if err != nil {
					return err
				}
				if text += string(in.Stdin); in.CloseStdin {
					told <- text
				}
			}
		}
		d.behave = func(l *life) int32 {
			l.log("stdout", "F", "one")
			l.log("stderr", "F", "oops")
			l.log("stdout", "P", "t")
			l.log("stdout", "F", "wo")
			_, _ = typist.Write([]byte("more"))
			_ = typist.Close()
			if !limited { // then the command has left
				l.log("stdout", "F", "heard "+<-told)
			}
			return 4
		}
		out, errs, code := d.berthIn(t.Context(), typed, "run", "-i", "--rm", "--log-dir", logs, "img:1")
		_ = typed.Close()
		switch {
		case limited && (code != ownFailure || !strings.Contains(errs, "its log does not have all of it")),
			!limited && (code != 4 || out != "one\ntwo\nheard more\n" || errs != "oops\n"):
			t.Errorf("%s: code %d, %q %q", name, code, out, errs)
		}
	}
}
