package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// behindAt has the daemon send some output and then no more, because it was not taken, while the input goes on.
func behindAt(text string) func(func() (*admin.AttachInput, error), func(*admin.AttachOutput) error) error {
	return func(recv func() (*admin.AttachInput, error), send func(*admin.AttachOutput) error) error {
		_ = send(&admin.AttachOutput{Ready: true})
		_ = send(&admin.AttachOutput{Stdout: []byte(text)})
		_ = send(&admin.AttachOutput{Behind: true})
		for {
			if _, err := recv(); err != nil {
				return err
			}
		}
	}
}

// TestRunOfALogThatLacksLines has a log whose disk was full, which says so or is yet to say so, and one that is
// damaged: the command does not end as if all of the output had been shown.
func TestRunOfALogThatLacksLines(t *testing.T) {
	const dropped = "[berth: the log could not be written, 3 lines were dropped]"
	for _, c := range []struct {
		name, stream, text string
		unlogged, plain    bool
	}{
		{"behind, a notice", "stderr", dropped, false, false},
		{"behind, no notice yet", "stdout", "two", true, false},
		{"behind, damage", "damage", "two", false, false},
		{"a notice", "stderr", dropped, false, true},
		{"no notice yet", "stdout", "two", true, true},
	} {
		d, logs := runnable(t)
		d.unlogged, d.attach = c.unlogged, behindAt("one\n")
		d.behave = func(l *life) int32 {
			l.log("stdout", "F", "one")
			l.log(c.stream, "F", c.text)
			return 0
		}
		args := []string{"run", "-i", "--log-dir", logs, "img:1"}
		if c.plain {
			args = []string{"run", "--log-dir", logs, "img:1"}
		}
		out, errs, code := d.berth(t, args...)
		if code != ownFailure || !strings.Contains(errs, errLogLacks.Error()) || !strings.HasPrefix(out, "one\n") {
			t.Errorf("%s: code %d, %q %q", c.name, code, out, errs)
		}
	}
}

// slowWriter takes the first that is written when it is told to.
type slowWriter struct {
	bytes.Buffer
	take chan struct{}
}

func (w *slowWriter) Write(p []byte) (int, error) {
	<-w.take
	return w.Buffer.Write(p)
}

// TestRunOfWhatIsRemovedBeforeItIsRead has a reader that takes longer than a container of --rm stays after its end: the
// daemon has removed it with its log by then.
func TestRunOfWhatIsRemovedBeforeItIsRead(t *testing.T) {
	for name, args := range map[string][]string{"attached": {"-i"}, "from the log": nil} {
		d, logs := runnable(t)
		ended, reader := make(chan struct{}), &slowWriter{take: make(chan struct{})}
		d.attach = behindAt("one\n")
		d.behave = func(l *life) int32 {
			for _, text := range []string{"one", "two", "three"} {
				l.log("stdout", "F", text)
			}
			<-ended
			return 4
		}
		go func() {
			time.Sleep(300 * time.Millisecond) // the log is open, and its reader waits
			close(ended)
			until(func() bool { return d.seenToEnd() })
			time.Sleep(300 * time.Millisecond)
			d.mu.Lock()
			d.pods, d.containers = nil, nil
			d.mu.Unlock()
			_ = os.RemoveAll(logs)
			close(reader.take)
		}()
		errs, code := d.berthTo(t.Context(), strings.NewReader(""), reader,
			append(append([]string{"run"}, args...), "--rm", "--log-dir", logs, "img:1")...)
		if out := reader.String(); out != "one\ntwo\nthree\n" || code != 4 {
			t.Errorf("%s: code %d, %q %q", name, code, out, errs)
		}
	}
}

// seenToEnd reports whether a container has ended.
func (d *daemon) seenToEnd() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.containers) == 1 && d.containers[0].State == runtimeapi.ContainerState_CONTAINER_EXITED
}

// TestSessionLostAfterTheEnd has the session of a command that goes on in the log be lost when the container has ended:
// the rest is in the log.
func TestSessionLostAfterTheEnd(t *testing.T) {
	d, logs := runnable(t)
	lost := make(chan struct{})
	d.attach = func(_ func() (*admin.AttachInput, error), send func(*admin.AttachOutput) error) error {
		_ = send(&admin.AttachOutput{Ready: true})
		_ = send(&admin.AttachOutput{Behind: true})
		<-lost
		return errors.New("the daemon ends")
	}
	d.behave = func(l *life) int32 {
		l.log("stdout", "F", "one")
		l.log("stdout", "F", "two")
		return 4
	}
	reader := &slowWriter{take: make(chan struct{})}
	go func() {
		until(func() bool { return d.seenToEnd() })
		time.Sleep(500 * time.Millisecond)
		close(lost)
		time.Sleep(200 * time.Millisecond)
		close(reader.take)
	}()
	errs, code := d.berthTo(t.Context(), strings.NewReader(""), reader, "run", "-i", "--log-dir", logs, "img:1")
	if out := reader.String(); out != "one\ntwo\n" || code != 4 {
		t.Errorf("code %d, %q %q", code, out, errs)
	}
}

// TestIdleWhenTheClockIsSet has what came last be noted by a clock that nobody sets.
func TestIdleWhenTheClockIsSet(t *testing.T) {
	var f flow
	streams := admin.Streams{Out: io.Discard, Err: io.Discard}
	f.through(&streams)
	began := time.Now().Add(-time.Hour)
	if f.idle(began) < time.Hour {
		t.Error("something came before anything was written")
	}
	_, _ = streams.Out.Write([]byte("x"))
	if last := *f.last.Load(); last == last.Round(0) {
		t.Errorf("%v follows the clock of the day", last)
	}
	if idle := f.idle(began); idle > time.Minute {
		t.Errorf("idle for %v after a write", idle)
	}
}

// brokenInput has some text, and then cannot be read.
type brokenInput struct{ text *strings.Reader }

func (b brokenInput) Read(p []byte) (int, error) {
	if b.text.Len() > 0 {
		return b.text.Read(p)
	}
	return 0, errors.New("input/output error")
}

// TestRunWhoseInputCannotBeRead has the container be stopped before its session ends, by which it would see the end of
// its input. The command fails, also where the container ends well.
func TestRunWhoseInputCannotBeRead(t *testing.T) {
	for _, outputEnds := range []bool{false, true} {
		d, logs := runnable(t)
		end, ended := make(chan error, 1), make(chan struct{})
		d.attach = func(recv func() (*admin.AttachInput, error), send func(*admin.AttachOutput) error) error {
			_ = send(&admin.AttachOutput{Ready: true})
			go func() {
				for {
					in, err := recv()
					if in != nil && in.CloseStdin {
						err = io.EOF
					}
					if err != nil {
						end <- err
						return
					}
				}
			}()
			if outputEnds {
				select {
				case <-ended:
					return nil
				case err := <-end:
					end <- err
				}
			}
			err := <-end
			if errors.Is(err, io.EOF) || !d.called("StopContainer") {
				t.Errorf("the container goes on, and sees the end of its input: %v", err)
			}
			return err
		}
		d.behave = func(l *life) int32 {
			l.log("stdout", "F", "one")
			select {
			case <-l.stop:
			case <-time.After(time.Second):
			}
			close(ended)
			return 0
		}
		_, errs, code := d.berthIn(t.Context(), brokenInput{strings.NewReader("some")}, "run", "-i", "--log-dir", logs,
			"img:1")
		if code != ownFailure || !strings.Contains(errs, "read the input: input/output error") {
			t.Errorf("code %d, %q", code, errs)
		}
	}
}
