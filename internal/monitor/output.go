package monitor

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// maxLine is how much of a line, in bytes, goes into one entry of the log; a longer line is written in parts, all but the
// last tagged P. Kubelets and agents expect this size.
const maxLine = 16 << 10

// readSize is how much is read of a stream at once, in bytes.
const readSize = 32 << 10

var streamNames = [3]string{1: "stdout", 2: "stderr"}

// output takes what a container says to its log and to whoever is attached.
type output struct {
	m *Monitor

	mu      sync.Mutex // guards what follows; taken after the monitor's buf
	streams [3]*stream
	log     *logFile
	sinks   []*sink
	dry     chan struct{} // closed when every stream has ended
	left    int           // streams that have not ended
}

// stream is one of a container's output streams.
type stream struct {
	n       int
	f       *os.File
	pending []byte // the beginning of a line whose end has not been read
	ended   bool
}

// sink is an attached client: descriptors that do not block.
type sink struct{ fds [3]int }

func newOutput(m *Monitor) *output { return &output{m: m, dry: make(chan struct{})} }

// open opens our end of stream n, a FIFO.
func (o *output) open(n int, path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return o.openFile(n, os.NewFile(uintptr(fd), path))
}

func (o *output) openFile(n int, f *os.File) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.streams[n] = &stream{n: n, f: f}
	o.left++
	return nil
}

// begin starts to read. What is in the streams by now came from the runtime, not from the container.
func (o *output) begin() {
	for _, s := range o.streams {
		if s != nil {
			if s.f.Name() != "console" {
				discard(s.f)
			}
			go o.pump(s)
		}
	}
}

func discard(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	var buf [4096]byte
	_ = rc.Control(func(fd uintptr) {
		for n := 1; n > 0; {
			n, _ = unix.Read(int(fd), buf[:])
		}
	})
}

// resume starts to read where another monitor has left off.
func (o *output) resume() {
	for _, s := range o.streams {
		if s != nil {
			go o.pump(s)
		}
	}
}

// pump reads a stream until it ends.
func (o *output) pump(s *stream) {
	rc, err := s.f.SyscallConn()
	if err == nil {
		err = rc.Read(func(fd uintptr) bool { return !o.read(s, int(fd)) })
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end(s)
}

// read takes one piece of a stream, and says whether there may be more later. It returns true when it would have to wait.
func (o *output) read(s *stream, fd int) (wait bool) {
	for {
		o.m.buf.Lock()
		n, err := unix.Read(fd, o.m.scratch[:readSize])
		if n > 0 {
			o.deliver(s, o.m.scratch[:n])
		}
		o.m.buf.Unlock()
		switch {
		case err == unix.EINTR || n > 0:
		case err == unix.EAGAIN:
			return true
		default: // 0 is the end; a terminal answers EIO there
			return false
		}
	}
}

// deliver gives a piece to the log and the attached. With the monitor's buf held.
func (o *output) deliver(s *stream, piece []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.log != nil {
		o.m.lines = s.format(o.m.lines[:0], piece, time.Now())
		o.log.write(o.m.lines)
	}
	for i := 0; i < len(o.sinks); i++ {
		if !o.sinks[i].write(s.n, piece) {
			o.sinks[i].close()
			o.sinks = append(o.sinks[:i], o.sinks[i+1:]...)
			i--
		}
	}
}

// end closes a stream that has ended. With o.mu held.
func (o *output) end(s *stream) {
	if s.ended {
		return
	}
	s.ended = true
	if o.log != nil && len(s.pending) > 0 {
		o.log.write(appendEntry(nil, time.Now(), s.n, 'P', s.pending, nil))
	}
	s.pending = nil
	if s.f.Name() != "console" {
		_ = s.f.Close()
	}
	if o.left--; o.left > 0 {
		return
	}
	close(o.dry)
	for _, k := range o.sinks {
		k.close()
	}
	o.sinks = nil
	if o.log != nil {
		o.log.close()
		o.log = nil
	}
}

// drain waits until every stream has ended, or for a while.
func (o *output) drain(d time.Duration) {
	o.mu.Lock()
	none := o.left == 0 || o.log == nil && len(o.sinks) == 0
	o.mu.Unlock()
	if none {
		return
	}
	select {
	case <-o.dry:
	case <-time.After(d):
	}
}

// close ends it all at once.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.streams {
		if s != nil {
			o.end(s)
		}
	}
}

// logTo begins the log; nil is no log.
func (o *output) logTo(l *wire.Log) error {
	if l == nil {
		return nil
	}
	f, err := openLog(l)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.log != nil {
		o.log.close()
	}
	o.log = f
	return nil
}

// reopen goes on in a new file at the log's path. When that cannot be made, the old one goes on and no file appears.
func (o *output) reopen(l *wire.Log) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.log == nil {
		return fmt.Errorf("the container has no log, or its output has ended")
	}
	f, err := openLog(l)
	if err != nil {
		return err
	}
	o.log.close()
	o.log = f
	return nil
}

// attach adds a client; its descriptors are closed when the output ends or the client is too slow.
func (o *output) attach(fds [3]int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := &sink{fds}
	if o.left == 0 {
		k.close()
		return nil
	}
	for _, fd := range fds {
		if fd >= 0 {
			if err := unix.SetNonblock(fd, true); err != nil {
				k.close()
				return err
			}
		}
	}
	o.sinks = append(o.sinks, k)
	return nil
}

// write says whether the client has kept up.
func (k *sink) write(n int, p []byte) bool {
	if k.fds[n] < 0 {
		return true
	}
	for len(p) > 0 {
		w, err := unix.Write(k.fds[n], p)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		p = p[w:]
	}
	return true
}

func (k *sink) close() { closeAll(k.fds) }

// format appends the entries that a piece of a stream completes; the rest waits for the end of its line.
func (s *stream) format(dst, piece []byte, at time.Time) []byte {
	for len(piece) > 0 {
		i := bytes.IndexByte(piece, '\n')
		room := maxLine - len(s.pending)
		switch {
		case i >= 0 && i <= room:
			dst = appendEntry(dst, at, s.n, 'F', s.pending, piece[:i])
			s.pending = s.pending[:0]
			piece = piece[i+1:]
		case len(piece) < room:
			s.pending = append(s.pending, piece...)
			return dst
		default:
			dst = appendEntry(dst, at, s.n, 'P', s.pending, piece[:room])
			s.pending = s.pending[:0]
			piece = piece[room:]
		}
	}
	return dst
}

// appendEntry appends one entry in CRI's format: <time> <stream> <P or F> <content>.
func appendEntry(dst []byte, at time.Time, n int, tag byte, parts ...[]byte) []byte {
	dst = at.AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, ' ')
	dst = append(dst, streamNames[n]...)
	dst = append(dst, ' ', tag, ' ')
	for _, p := range parts {
		dst = append(dst, p...)
	}
	return append(dst, '\n')
}
