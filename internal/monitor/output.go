package monitor

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/monitor/wire"
)

// readSize is how much is read of a stream at once, in bytes.
const readSize = 32 << 10

// buffer is what it takes to bring output from a stream to a log: what was read, and the entries made of it.
type buffer struct {
	in  [readSize]byte
	out [readSize]byte
}

// takeBuffer returns a buffer. There is one for all streams, and another only while a log does not take what it is given.
func (m *Monitor) takeBuffer() *buffer {
	select {
	case b := <-m.spare:
		return b
	default:
		return new(buffer)
	}
}

func (m *Monitor) giveBuffer(b *buffer) {
	select {
	case m.spare <- b:
	default:
	}
}

var streamNames = [3]string{"stdin", "stdout", "stderr"}

// output takes what a container says to its log and to whoever is attached.
type output struct {
	m     *Monitor
	moved atomic.Int64 // bytes read

	// writing is held while the log is written to, which a hung disk can make last for ever: only the streams, and what
	// they have pending, wait for it. It guards log, and is taken before mu.
	writing sync.Mutex
	log     *logFile

	mu      sync.Mutex // guards what follows; nothing that can last is done under it
	streams [3]*stream
	next    *logFile // takes log's place
	logged  bool
	sinks   []*sink
	dry     chan struct{} // closed when every stream has ended
	left    int           // streams that have not ended
}

// stream is one of a container's output streams.
type stream struct {
	n       int
	f       *os.File
	pumped  bool        // guarded by the output's mu
	ended   bool        // guarded by the output's mu
	stopped atomic.Bool // nobody wants the rest

	// The beginning of a line whose end has not been read. Guarded by the output's writing.
	pending []byte
	since   time.Time   // when pending began
	timer   *time.Timer // runs while there is something pending
	armed   bool
}

func newOutput(m *Monitor) *output { return &output{m: m, dry: make(chan struct{})} }

// open opens our end of stream n, a FIFO.
func (o *output) open(n int, path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	o.openFile(n, os.NewFile(uintptr(fd), path))
	return nil
}

func (o *output) openFile(n int, f *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.streams[n] = &stream{n: n, f: f}
	o.left++
}

// begin starts to read. What is in the streams by now came from the runtime, not from the container.
func (o *output) begin() {
	for _, s := range unpumped(o) {
		if s.f.Name() != consoleName {
			discard(s.f)
		}
		go o.pump(s)
	}
}

// resume starts to read where another monitor has left off.
func (o *output) resume() {
	for _, s := range unpumped(o) {
		go o.pump(s)
	}
}

// unpumped are the streams that nobody reads; the caller does from here on.
func unpumped(o *output) (list []*stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.streams {
		if s != nil && !s.pumped && !s.ended {
			s.pumped = true
			list = append(list, s)
		}
	}
	return list
}

func discard(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	var buf [512]byte
	_ = rc.Control(func(fd uintptr) {
		for n := 1; n > 0; {
			n, _ = unix.Read(int(fd), buf[:])
		}
	})
}

// pump reads a stream until it ends.
func (o *output) pump(s *stream) {
	if rc, err := s.f.SyscallConn(); err == nil {
		_ = rc.Read(func(fd uintptr) bool { return !o.read(s, int(fd)) })
	}
	o.end(s)
}

// read takes what a stream has. It returns true when it would have to wait for more.
func (o *output) read(s *stream, fd int) (wait bool) {
	b := o.m.takeBuffer()
	defer o.m.giveBuffer(b)
	for !s.stopped.Load() {
		n, err := unix.Read(fd, b.in[:])
		if n > 0 {
			o.moved.Add(int64(n))
			o.deliver(s, b, n)
		}
		switch {
		case err == unix.EINTR || n > 0:
		case err == unix.EAGAIN:
			return true
		default: // 0 is the end; a terminal answers EIO there
			return false
		}
	}
	return false
}

// deliver gives a piece to the attached and to the log.
func (o *output) deliver(s *stream, b *buffer, n int) {
	toSinks(o, s.n, b.in[:n])
	o.writing.Lock()
	o.takeNext()
	if o.log != nil {
		s.log(batch{o.log, b.out[:0]}, b.in[:n], time.Now())
		o.arm(s, partTime)
	}
	o.writing.Unlock()
	o.swap()
}

// end closes a stream that has ended, and everything after the last one.
func (o *output) end(s *stream) {
	o.writing.Lock()
	defer o.writing.Unlock()
	o.takeNext()
	s.flush(o.log)
	if !o.ended(s) {
		return
	}
	if o.log != nil {
		o.log.close()
		o.log = nil
	}
}

// ended says whether this was the last stream.
func (o *output) ended(s *stream) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.ended {
		return false
	}
	s.ended = true
	if s.f.Name() != consoleName {
		_ = s.f.Close()
	}
	if o.left--; o.left > 0 {
		return false
	}
	close(o.dry)
	for _, k := range o.sinks {
		k.close()
	}
	o.sinks = nil
	return true
}

// drainTime is how long output is still awaited after a container's first process ended, when something else keeps its
// streams open, and drainMax how long it is taken while it flows.
const drainTime, drainMax = 500 * time.Millisecond, 2 * time.Second

// moment is how long the exit of a container waits for its last words, in case this monitor is killed next: what is still
// in a FIFO is gone with the last that holds it open. When nothing else holds the streams they end at once.
const moment = 100 * time.Millisecond

// endSoon gives the streams a moment to end.
func endSoon(o *output) {
	o.mu.Lock()
	begun := o.left > 0
	for _, s := range o.streams {
		begun = begun && (s == nil || s.pumped)
	}
	o.mu.Unlock()
	if !begun {
		return
	}
	select {
	case <-o.dry:
	case <-time.After(moment):
	}
}

// drain waits until every stream has ended, or no more comes, or for a while.
func (o *output) drain() {
	o.mu.Lock()
	unread := o.left == 0
	for _, s := range o.streams {
		unread = unread || s != nil && !s.pumped
	}
	o.mu.Unlock()
	if unread {
		return
	}
	for waited := time.Duration(0); waited < drainMax; waited += drainTime {
		before := o.moved.Load()
		select {
		case <-o.dry:
			return
		case <-time.After(drainTime):
		}
		if o.moved.Load() == before {
			return
		}
	}
}

// close ends it all. It waits for nobody: a stream whose reader hangs in a log is closed when that comes back.
func (o *output) close() {
	o.mu.Lock()
	var idle []*stream
	for _, s := range o.streams {
		switch {
		case s == nil || s.ended:
		case s.pumped:
			s.stopped.Store(true)
			_ = s.f.SetReadDeadline(time.Unix(1, 0))
		default:
			idle = append(idle, s)
		}
	}
	o.mu.Unlock()
	for _, s := range idle {
		o.end(s)
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
	return o.use(f)
}

var errNoLog = errors.New("the container has no log, or its output has ended")

// reopen goes on in a new file at the log's path. When that cannot be made, the old one goes on and no file appears.
func (o *output) reopen(l *wire.Log) error {
	o.mu.Lock()
	logged := o.logged && o.left > 0
	o.mu.Unlock()
	if !logged || l == nil {
		return errNoLog
	}
	return o.logTo(l)
}

// use has what is written from now on go to f. What is being written to the log before it does not delay that.
func (o *output) use(f *logFile) error {
	o.mu.Lock()
	if o.left == 0 {
		o.mu.Unlock()
		f.close()
		return errNoLog
	}
	if o.next != nil {
		o.next.close()
	}
	o.next, o.logged = f, true
	o.mu.Unlock()
	o.swap()
	return nil
}

// swap lets go of a log that has been replaced, unless it is being written to; then the writer does.
func (o *output) swap() {
	o.mu.Lock()
	waits := o.next != nil
	o.mu.Unlock()
	if waits && o.writing.TryLock() {
		o.takeNext()
		o.writing.Unlock()
	}
}

// takeNext makes the next log the log. With writing held.
func (o *output) takeNext() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next == nil {
		return
	}
	if o.log != nil {
		o.next.dropped = o.log.dropped
		o.log.close()
	}
	o.log, o.next = o.next, nil
	if o.left == 0 {
		o.log.close()
		o.log = nil
	}
}
