package monitor

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// bufferSize is how much is written to a log at once, in bytes.
const bufferSize = 32 << 10

// buffer is where the entries of a log are made.
type buffer [bufferSize]byte

// takeBuffer returns a buffer. There is one for all streams, and another only while a log does not take what it is
// given.
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
//
// Each stream has a goroutine that takes. What it has taken it brings to the log, unless another writes there at the
// moment, which then does that too: a disk that hangs holds up the stream whose turn it was, and others when their
// windows are full.
type output struct {
	moved atomic.Int64 // bytes taken
	log   *logWriter
	pace  *pace // of the monitor

	mu      sync.Mutex // guards what follows; nothing that can last is done under it
	streams [3]*stream
	sinks   []*sink
	dry     chan struct{} // closed when every stream has ended
	left    int           // streams that have not ended
	rests   *time.Timer   // looks at the windows
	resting bool
	rested  int64 // what moved was then
}

// stream is one of a container's output streams.
type stream struct {
	source  *source
	f       *os.File
	pumped  bool        // guarded by the output's mu
	ended   bool        // guarded by the output's mu
	stopped atomic.Bool // what comes from now on is not wanted
	taking  sync.Mutex  // held while something is taken; taken before the log's writing
	gather  gather      // guarded by taking
}

func newOutput(m *Monitor, ctr string) *output {
	log := &logWriter{m: m, ctr: ctr, opening: make(chan struct{}, 1)}
	return &output{log: log, pace: m.pace, dry: make(chan struct{})}
}

// attach adds a client; its descriptors are closed when the output ends or the client is too slow.
func (o *output) attach(k sink) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left == 0 {
		k.close()
		return nil
	}
	for _, fd := range k.fds() {
		if fd >= 0 {
			if err := unix.SetNonblock(fd, true); err != nil {
				k.close()
				return err
			}
		}
	}
	o.sinks = append(o.sinks, &k)
	return nil
}

// toSinks gives a piece of stream n to the attached, and drops those that do not keep up.
func toSinks(o *output, n int, piece []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := o.sinks[:0]
	for _, k := range o.sinks {
		switch k.write(n, piece) {
		case nil:
			kept = append(kept, k)
		case unix.EAGAIN:
			k.drop()
		default: // it went away
			k.close()
		}
	}
	o.sinks = kept
}

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
	s := &stream{source: o.log.sources[n], f: f, gather: gather{holds: pipeHolds}}
	if f.Name() == consoleName {
		s.source.copied = true
		s.gather.holds = terminalHolds
	}
	o.streams[n] = s
	o.left++
}

// begin starts to read before the container's process is let go for the first time. What is in the streams by now came
// from the runtime, not from the container.
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

// unpumped are the streams that are not being read; the caller does from here on.
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

// flowing is how often in a row all that a window had room for was taken when it is made larger.
const flowing = 3

// takePause is the pause before something is tried again that no stream is to be given up for, such as a lack of
// memory.
const takePause = 100 * time.Millisecond

// pump reads a stream until it ends.
func (o *output) pump(s *stream) {
	if rc, err := s.f.SyscallConn(); err == nil {
		_ = rc.Read(func(fd uintptr) bool { return !o.read(s, int(fd)) })
	}
	o.end(s)
}

// read takes what a stream has. It returns true when it would have to wait for more.
func (o *output) read(s *stream, fd int) (wait bool) {
	s.taking.Lock()
	defer s.taking.Unlock()
	for full, rest := 0, -1; ; { // rest is not asked for yet
		if s.stopped.Load() {
			// A disk of logs that hangs may have held this up since before the container's end: what it said is there still.
			if rest < 0 {
				rest = waiting(fd)
			}
			if rest == 0 {
				return false
			}
		}
		if o.log.makeRoom(s.source, full >= flowing) {
			o.restLater()
		}
		piece, err := s.source.take(fd)
		switch {
		case len(piece) > 0:
			o.moved.Add(int64(len(piece)))
			o.pace.count(len(piece))
			if rest > 0 {
				rest = max(0, rest-len(piece))
			}
			toSinks(o, s.source.n, piece)
			empty := s.source.free() > 0
			if full++; empty {
				full = 0
			}
			o.log.taken()
			if d := s.gather.took(len(piece), empty, time.Now()); d > 0 {
				s.taking.Unlock()
				time.Sleep(d)
				s.taking.Lock()
			}
		case err == unix.EAGAIN:
			return true
		case err == nil || err == unix.EIO && s.f.Name() == consoleName: // a terminal answers EIO at its end
			return false
		case err != unix.EINTR:
			time.Sleep(takePause)
		}
	}
}

// waiting is how many bytes a stream has that were not taken, 0 where that cannot be told.
func waiting(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// end closes a stream that has ended, and everything after the last one.
func (o *output) end(s *stream) {
	o.log.end(s.source, func() bool { return o.ended(s) })
}

// ended reports whether this was the last stream.
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

// close ends it all. It does not wait: a stream whose reader hangs in a log is closed when that comes back, and has
// taken what the stream had then.
func (o *output) close() {
	stay(o.log)
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
	never := o.left == 0
	o.mu.Unlock()
	for _, s := range idle {
		o.end(s)
	}
	if never { // or all have ended
		go o.log.shut()
	}
}

// restTime is how long the streams are quiet before what their windows have grown by is given back.
const restTime = time.Second

// restLater looks at the windows in a while.
func (o *output) restLater() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.resting {
		return
	}
	o.resting, o.rested = true, o.moved.Load()
	if o.rests == nil {
		o.rests = time.AfterFunc(restTime, o.rest)
	} else {
		o.rests.Reset(restTime)
	}
}

// rest gives back what the windows have grown by when nothing was taken since, and looks again otherwise.
func (o *output) rest() {
	o.mu.Lock()
	small, streams := o.moved.Load() == o.rested, o.streams
	o.resting = false
	o.mu.Unlock()
	for _, s := range streams[1:] {
		small = small && (s == nil || o.shrink(s))
	}
	if !small {
		o.restLater()
	}
}

// shrink gives back what a window has grown by, if it is empty and not in use at the moment.
func (o *output) shrink(s *stream) bool {
	if !s.taking.TryLock() {
		return false
	}
	defer s.taking.Unlock()
	return o.log.shrink(s.source)
}
