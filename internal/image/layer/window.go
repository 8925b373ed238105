package layer

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"berth/internal/limit"
)

// OrdinaryWindow is the largest window, in bytes, that image builders use by default.
const OrdinaryWindow = 8 << 20

// windows is the memory budget for the zstd windows of all streams in the process.
var windows = newWindowBudget(runtime.GOMAXPROCS(0), 10*time.Second)

// windowBudget bounds the memory of zstd windows.
//
// There is memory for one ordinary window per CPU, because more streams than CPUs decode no faster. A stream waits for
// it only until its timeout, and then goes on without: a stream that holds its window longer than that reads from a
// slow registry, which must not hold up the others, and a slow link needs many streams at once.
//
// Wider windows share the memory of one window of limit.ZstdWindow. A stream waits for that until its context ends, so
// no image can make the process use more. While a stream waits, one whose source is slow has to give way (see Holder),
// unless it was read to its end before (see WithWhole).
type windowBudget struct {
	ordinary, wide *semaphore.Weighted
	timeout        time.Duration
	most           int // bounds the idle decoders
	holders        holders
	// ask asks the process that has the budget for a window; nil if this process has it.
	ask func(size int64) error

	mu      sync.Mutex // guards what follows
	streams int        // counts the open ones
	held    int64      // bytes of windows, with those of idle decoders
	idle    []*decoder
}

// decoder is a zstd decoder with the size of the largest window that it has allocated.
type decoder struct {
	*zstd.Decoder
	window int64
}

func newWindowBudget(cpus int, timeout time.Duration) *windowBudget {
	return &windowBudget{
		ordinary: semaphore.NewWeighted(int64(cpus) * OrdinaryWindow), wide: semaphore.NewWeighted(limit.ZstdWindow.Limit),
		timeout: timeout, most: cpus,
	}
}

// acquire waits for a window of size bytes, which must be at most limit.ZstdWindow. The caller gives it back by
// release.
func (b *windowBudget) acquire(ctx context.Context, size int64) (release func(), err error) {
	if b.ask != nil {
		return func() {}, b.ask(size)
	}
	if size > OrdinaryWindow {
		return b.acquireWide(ctx, size)
	}
	wait, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if b.ordinary.Acquire(wait, size) == nil {
		return func() { b.ordinary.Release(size) }, nil
	}
	return func() {}, context.Cause(ctx)
}

func (b *windowBudget) acquireWide(ctx context.Context, size int64) (release func(), err error) {
	if err := makeWhole(ctx); err != nil {
		return nil, err
	}
	if !b.wide.TryAcquire(size) {
		stop := b.holders.giveWay(b.timeout)
		defer stop()
		if err := b.wide.Acquire(ctx, size); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	leave := b.holders.add(ctx)
	return func() { leave(); b.wide.Release(size) }, nil
}

// AskWindows sets the function that asks another process for windows. It is called before the first stream is read. The
// other process takes the windows back when this process has ended.
func AskWindows(ask func(size int64) error) { windows.ask = ask }

// AcquireWindow waits for the memory of a window that another process will use, and charges the budget of this process.
func AcquireWindow(ctx context.Context, size int64) (release func(), err error) {
	if err := limit.ZstdWindow.Check(size); err != nil || size <= 0 {
		return func() {}, err
	}
	return windows.acquire(ctx, size)
}

// enter is called when a stream is opened, and leave when it is closed. While any stream is open, idle decoders are
// kept, so that the next layer reuses the window of the last one.
func (b *windowBudget) enter() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams++
}

func (b *windowBudget) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.streams--; b.streams > 0 {
		return
	}
	for _, d := range b.idle {
		b.hold(-d.window)
	}
	b.idle = nil
}

// take returns a decoder for a stream that has acquired a window of the given size.
func (b *windowBudget) take(window int64) *decoder {
	b.mu.Lock()
	defer b.mu.Unlock()
	var d *decoder
	if last := len(b.idle) - 1; last >= 0 {
		d, b.idle = b.idle[last], b.idle[:last]
	} else {
		d = &decoder{Decoder: newZstdDecoder()}
	}
	b.growLocked(d, window)
	return d
}

// grow notes that a decoder in use will have a window of the given size.
func (b *windowBudget) grow(d *decoder, window int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.growLocked(d, window)
}

func (b *windowBudget) growLocked(d *decoder, window int64) {
	if more := window - d.window; more > 0 {
		d.window = window
		b.hold(more)
	}
}

// put takes a decoder back, and keeps it for the next stream unless its window is wide or enough are kept.
func (b *windowBudget) put(d *decoder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.window > OrdinaryWindow || len(b.idle) >= b.most {
		b.hold(-d.window)
		return
	}
	b.idle = append(b.idle, d)
}

// collectorPercent is GOGC while there are no windows.
var collectorPercent = sync.OnceValue(func() int {
	was := debug.SetGCPercent(100)
	debug.SetGCPercent(was)
	return was
})

// hold adds to the bytes of windows, and lowers GOGC accordingly. By default the collector lets as much garbage
// accumulate as memory is in use, so that it need not scan that memory often. Windows have no pointers to scan; without
// hold they would only let as much garbage again accumulate.
func (b *windowBudget) hold(bytes int64) {
	if b.held += bytes; b.ask != nil {
		return // the process that answers has counted the windows, and sets GOGC of this one
	}
	const rest = 16 << 20 // about the memory in use without windows
	if usual := collectorPercent(); usual > 0 {
		debug.SetGCPercent(max(1, int(int64(usual)*rest/(rest+b.held))))
	}
}
