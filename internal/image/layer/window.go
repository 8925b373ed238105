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

// OrdinaryWindow is the largest window in bytes that image builders use unless told otherwise.
const OrdinaryWindow = 8 << 20

// windows is the memory for the windows of all streams in the process.
var windows = newWindowBudget(runtime.GOMAXPROCS(0), 10*time.Second)

// windowBudget bounds the memory of windows. Ordinary ones have a place for each CPU, because more streams than CPUs
// decode no faster; a stream waits for a place only a while, since one that is held longer belongs to a slow registry,
// which must not hold up the others, and many streams at once are what a slow link needs. Wide ones share what one of
// limit.ZstdWindow takes, and wait as long as it takes: no image can make the process use more. Of those a stream whose
// source is slow gives way to one that waits.
type windowBudget struct {
	ordinary, wide *semaphore.Weighted
	patience       time.Duration
	most           int // decoders kept for the next stream
	holders        holders
	// ask gets windows from another process, which has the budget; nil where this one has it.
	ask func(size int64) error

	mu      sync.Mutex // guards what follows
	streams int        // open ones
	held    int64      // bytes of windows, those of idle decoders among them
	idle    []*decoder
}

// decoder is a decoder with the largest window that it has had memory for.
type decoder struct {
	*zstd.Decoder
	window int64
}

func newWindowBudget(cpus int, patience time.Duration) *windowBudget {
	return &windowBudget{
		ordinary: semaphore.NewWeighted(int64(cpus) * OrdinaryWindow), wide: semaphore.NewWeighted(limit.ZstdWindow.Limit),
		patience: patience, most: cpus,
	}
}

// acquire waits for size bytes, at most limit.ZstdWindow. They are given back by release.
func (b *windowBudget) acquire(ctx context.Context, size int64) (release func(), err error) {
	if b.ask != nil {
		return func() {}, b.ask(size)
	}
	if size > OrdinaryWindow {
		return b.acquireWide(ctx, size)
	}
	wait, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	if b.ordinary.Acquire(wait, size) == nil {
		return func() { b.ordinary.Release(size) }, nil
	}
	return func() {}, context.Cause(ctx)
}

func (b *windowBudget) acquireWide(ctx context.Context, size int64) (release func(), err error) {
	if !b.wide.TryAcquire(size) {
		stop := b.holders.giveWay(b.patience)
		defer stop()
		if err := b.wide.Acquire(ctx, size); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	leave := b.holders.add(ctx)
	return func() { leave(); b.wide.Release(size) }, nil
}

// AskWindows has windows be asked for elsewhere, before the first stream is read. They are given back by the process's
// end.
func AskWindows(ask func(size int64) error) { windows.ask = ask }

// AcquireWindow waits for the memory of a window in another process, on the budget of this one.
func AcquireWindow(ctx context.Context, size int64) (release func(), err error) {
	if err := limit.ZstdWindow.Check(size); err != nil || size <= 0 {
		return func() {}, err
	}
	return windows.acquire(ctx, size)
}

// enter announces a stream: decoders are kept until there is none, so that one layer uses the window of the one before.
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

// take gives a decoder to a stream that has acquired window bytes.
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

// grow notes that a decoder in use will have a window of so many bytes.
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

// put takes a decoder back, and keeps it for the next stream unless it takes too much.
func (b *windowBudget) put(d *decoder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.window > OrdinaryWindow || len(b.idle) >= b.most {
		b.hold(-d.window)
		return
	}
	b.idle = append(b.idle, d)
}

// collectorPercent is how much garbage the collector lets gather when there is no window, in percent of what is in use.
var collectorPercent = sync.OnceValue(func() int {
	was := debug.SetGCPercent(100)
	debug.SetGCPercent(was)
	return was
})

// hold keeps windows from being a reason to let garbage gather. The collector lets as much gather as is in use, which
// spares it from looking through that often; but a window has nothing to look through, and would only double its
// memory.
func (b *windowBudget) hold(bytes int64) {
	if b.held += bytes; b.ask != nil {
		return // who answers knows what else this process needs memory for
	}
	const rest = 16 << 20 // about what the process has in use without windows
	if usual := collectorPercent(); usual > 0 {
		debug.SetGCPercent(max(1, int(int64(usual)*rest/(rest+b.held))))
	}
}
