package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

// The streams of a log line.
const (
	streamOut = "stdout"
	streamErr = "stderr"
)

// logLine is one line of a log in CRI's format: "2024-05-01T10:00:00.123456789Z stdout F hello".
type logLine struct {
	time    string
	at      time.Time
	stream  string
	partial bool // the next line of the stream goes on with it
	text    []byte
}

// parseLog takes a line apart, without its end.
func parseLog(line []byte) (logLine, error) {
	at, rest, ok1 := bytes.Cut(line, []byte(" "))
	stream, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tags, text, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || !ok3 {
		return logLine{}, fmt.Errorf("not a line of a container's log: %q", cutShort(line))
	}
	when, err := time.Parse(time.RFC3339Nano, string(at))
	if err != nil {
		return logLine{}, fmt.Errorf("not the time of a log line: %q", cutShort(at))
	}
	if s := string(stream); s != streamOut && s != streamErr {
		return logLine{}, fmt.Errorf("not the stream of a log line: %q", cutShort(stream))
	}
	first, _, _ := bytes.Cut(tags, []byte(":"))
	return logLine{time: string(at), at: when, stream: string(stream), partial: string(first) == "P", text: text}, nil
}

func cutShort(b []byte) []byte { return b[:min(len(b), 40)] }

// logReader copies a container's log to where its streams go.
type logReader struct {
	path       string
	out, err   io.Writer
	timestamps bool
	tail       int       // lines; all when negative
	since      time.Time // the zero time is no bound
	until      time.Time
	prefix     string           // of each line, which is held until it is whole
	seen       map[string]int64 // bytes of a stream that were shown before; they are passed over
	exact      bool             // what the log lacks is an error, since seen counts by what it has
	// ended, when set, says that the container has ended and its log with it. It is asked when there is no more to read;
	// until it agrees, the reader waits for more, and for another file that takes the log's place.
	ended func(context.Context) (bool, error)

	file    *os.File
	at      int64  // how far the file is read
	pending []byte // of a line whose end is not there yet
	skips   bool   // the rest of a line that is too long
	rotated map[string]os.FileInfo
	good    int               // lines of a log
	bad     int               // lines that are none
	lost    bool              // the log says that lines were dropped since it could not be written
	open    map[string]bool   // streams whose last line was partial
	held    map[string][]byte // of lines behind a prefix, by stream, what was partial
}

const (
	logPoll = 50 * time.Millisecond
	// mostLine bounds what is held of one line; monitors write shorter ones.
	mostLine = 1 << 20
)

// copy reads the log to its end.
func (r *logReader) copy(ctx context.Context) error {
	r.open, r.held = map[string]bool{}, map[string][]byte{}
	defer func() { r.closeFile() }()
	err := r.lines(ctx)
	if err == nil && r.exact && r.file == nil {
		err = r.gap("there is no log any more")
	}
	if errors.Is(err, context.Canceled) {
		if r.ended != nil {
			return nil // so ends who follows
		}
		return errInterrupted
	}
	if r.bad > 1 {
		r.note("%d damaged lines in all were left out", r.bad)
	}
	if err == nil && r.bad > 0 && r.good == 0 && r.tail < 0 {
		return fmt.Errorf("%s is not the log of a container", r.path)
	}
	return err
}

// lines copies the lines.
func (r *logReader) lines(ctx context.Context) error {
	if r.file == nil {
		if err := r.openFile(r.ended != nil); err != nil && (r.ended == nil || !absent(err)) {
			return err
		}
	}
	if r.file != nil && r.tail >= 0 {
		if err := r.seekTail(ctx); err != nil {
			return err
		}
	}
	for ended := r.ended == nil; ; {
		if err := r.drain(ctx); err != nil {
			return nilIfPast(err)
		}
		if ended {
			return nilIfPast(r.rest())
		}
		moved, err := r.advance(ctx)
		if err != nil {
			return nilIfPast(err)
		}
		if moved {
			continue
		}
		if ended, err = r.ended(ctx); err != nil || ended {
			if err != nil {
				return err
			}
			continue // once more, for what came before it ended
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(logPoll):
		}
	}
}

// openFile opens the log. Who follows it notes what was rotated before.
func (r *logReader) openFile(follows bool) (err error) {
	r.file, err = os.Open(r.path)
	r.at, r.skips = 0, false
	if err == nil && follows {
		r.rotatedBefore()
	}
	return err
}

// note says on standard error what is wrong with the log. What is right in it is printed nevertheless.
func (r *logReader) note(format string, args ...any) {
	fmt.Fprintf(r.err, "berth: %s: %s\n", visibleLine(r.path), fmt.Sprintf(format, args...))
}

// damaged leaves out a line that cannot be read, as a kubelet does. It tells of the first alone: there may be many.
func (r *logReader) damaged(why error) error {
	if r.bad++; r.bad == 1 {
		r.note("%v; damaged lines are left out", why)
	}
	return r.gap("a line is damaged")
}

// errLogLost is what a log says of itself.
var errLogLost = fmt.Errorf("%w: lines were dropped while it could not be written", errLogLacks)

// gap is the error of something that the log lacks, where that is one.
func (r *logReader) gap(what string) error {
	if !r.exact {
		return nil
	}
	return fmt.Errorf("%w: %s", errLogLacks, what)
}

// lostLines is how a monitor says in a log that there are lines missing.
var lostLines = regexp.MustCompile(`^\[berth: the log could not be written, \d+ lines were dropped\]$`)

func (r *logReader) closeFile() {
	if r.file != nil {
		_ = r.file.Close()
	}
}

// advance goes on to the file that has taken the log's place, when there is one, or at the beginning of one that
// became shorter. It is called at the end of the old file; what was still written to that after its replacement
// appeared is read first.
func (r *logReader) advance(ctx context.Context) (bool, error) {
	now, err := os.Stat(r.path)
	if absent(err) {
		return false, nil // between a rename and the new file
	}
	if err != nil {
		return false, err
	}
	if r.file != nil {
		old, err := r.file.Stat()
		if err != nil {
			return false, err
		}
		if os.SameFile(old, now) {
			return r.restart(old.Size())
		}
		if err := errors.Join(r.drain(ctx), r.rest()); err != nil {
			return false, err
		}
		r.pending = nil // the last line of the old file stays unfinished
		if err := r.tellOfMissed(old); err != nil {
			return false, err
		}
	}
	r.closeFile()
	if err := r.openFile(true); err != nil && !absent(err) { // it may have been renamed again
		return false, err
	}
	return true, nil
}

// restart goes back to the beginning of the file where that is shorter than what was read of it: somebody emptied it,
// and what is written to it from then on begins there.
func (r *logReader) restart(size int64) (bool, error) {
	if size >= r.at {
		return false, nil
	}
	if err := r.rest(); err != nil {
		return false, err
	}
	r.note("it became shorter while it was read; what it holds now follows")
	if err := r.gap("it became shorter"); err != nil {
		return false, err
	}
	r.pending, r.skips, r.at = nil, false, 0
	_, err := r.file.Seek(0, io.SeekStart)
	return true, err
}

// drain copies what there is, until somebody interrupts it. A deadline is that of --until, by which all was written:
// what is there then is still copied.
func (r *logReader) drain(ctx context.Context) error {
	if r.file == nil {
		return nil
	}
	buf := make([]byte, 64<<10)
	for {
		if err := ctx.Err(); errors.Is(err, context.Canceled) {
			return err
		}
		n, err := r.file.Read(buf)
		r.at += int64(n)
		if werr := r.feed(buf[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// feed takes bytes of the file and writes the lines that they complete.
func (r *logReader) feed(data []byte) error {
	r.pending = append(r.pending, data...)
	for {
		line, rest, found := bytes.Cut(r.pending, []byte("\n"))
		if !found {
			if len(r.pending) > mostLine && !r.skips {
				if err := r.damaged(fmt.Errorf("a line of more than %d bytes", mostLine)); err != nil {
					return err
				}
				r.skips = true
			}
			if r.skips {
				r.pending = nil
			}
			r.pending = append([]byte(nil), r.pending...) // lets go of what was read before it
			return nil
		}
		r.pending = rest
		if r.skips {
			r.skips = false
			continue
		}
		if err := r.write(line); err != nil {
			return err
		}
	}
}

func (r *logReader) write(line []byte) error {
	l, err := parseLog(line)
	if err != nil {
		return r.damaged(err)
	}
	r.good++
	if l.stream == streamErr && lostLines.Match(l.text) {
		r.lost = true
		if r.exact {
			return errLogLost
		}
	}
	switch {
	case !r.until.IsZero() && l.at.After(r.until):
		return errPast
	case l.at.Before(r.since):
		return nil
	}
	text := r.held[l.stream]
	delete(r.held, l.stream)
	if !r.open[l.stream] {
		text = append(text, r.prefix...)
		if r.timestamps {
			text = append(append(text, l.time...), ' ')
		}
	}
	text = append(text, l.text...)
	if l.partial && r.prefix != "" && len(text) < mostLine {
		r.held[l.stream], r.open[l.stream] = text, true
		return nil
	}
	if !l.partial {
		text = append(text, '\n')
	}
	r.open[l.stream] = l.partial
	if n := min(r.seen[l.stream], int64(len(text))); n > 0 {
		r.seen[l.stream] -= n
		text = text[n:]
	}
	w := r.out
	if l.stream == streamErr {
		w = r.err
	}
	_, err = w.Write(text)
	return err
}

// errPast ends the reading of a log at a line that came later than anybody wants to see.
var errPast = errors.New("past the end of what was asked for")

func nilIfPast(err error) error {
	if errors.Is(err, errPast) {
		return nil
	}
	return err
}

// rest writes what a torn last line has, if it can be read at all.
func (r *logReader) rest() error {
	if _, err := parseLog(r.pending); err != nil {
		if len(r.pending) > 0 {
			err = r.gap("its last line is torn")
		} else {
			err = nil
		}
		return errors.Join(err, r.flush())
	}
	return errors.Join(r.write(r.pending), r.flush())
}

// flush writes what is held of lines whose end never came.
func (r *logReader) flush() (err error) {
	for stream, text := range r.held {
		w := r.out
		if stream == streamErr {
			w = r.err
		}
		_, werr := w.Write(append(text, '\n'))
		err = errors.Join(err, werr)
	}
	clear(r.held)
	return err
}
