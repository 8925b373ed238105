package image

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image/progress"
)

// singleflight runs a piece of work once for all callers that need it at the same time. The work has a context of its
// own. When the last caller has left, the context ends and the result is dropped.
type singleflight[T any] struct {
	mu    sync.Mutex // guards what follows, and the refs of each flight
	byID  map[string]*flight[T]
	tasks map[chan struct{}]struct{} // a channel for each task that runs, which is closed at its end
}

type flight[T any] struct {
	key    string
	done   chan struct{}
	cancel context.CancelFunc
	refs   int
	value  T
	err    error
	listen progress.Listeners
}

// join starts the work called key, and owner is true then, or joins it. The caller calls leave when it no longer needs
// the value.
func (f *singleflight[T]) join(
	key string, p *progress.Reporter, work func(context.Context, *progress.Listeners) (T, error), drop func(T),
) (fl *flight[T], owner bool, leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byID == nil {
		f.byID = map[string]*flight[T]{}
	}
	fl = f.byID[key]
	if fl == nil {
		ctx, cancel := context.WithCancel(context.Background())
		fl, owner = &flight[T]{key: key, done: make(chan struct{}), cancel: cancel}, true
		f.byID[key] = fl
		f.goLocked(func() {
			fl.run(ctx, work)
			close(fl.done)
		})
	}
	fl.refs++
	quiet := fl.listen.Add(p)
	var once sync.Once
	return fl, owner, func() {
		once.Do(func() {
			quiet()
			f.leave(key, fl, drop)
		})
	}
}

// run does the work. If the work panics, it fails, and its stack goes to the log: what is wrong with one image must not
// take down the daemon, again at each pull.
func (fl *flight[T]) run(ctx context.Context, work func(context.Context, *progress.Listeners) (T, error)) {
	defer func() {
		if p := recover(); p != nil {
			fl.err = fail.New(errdefs.ErrInternal, "panic: %v; the daemon's log has the stack", p)
			slog.Error("panic while an image is fetched; please report it", "flight", fl.key, "panic", p,
				"stack", string(debug.Stack()))
		}
	}()
	fl.value, fl.err = work(ctx, &fl.listen)
}

func (f *singleflight[T]) leave(key string, fl *flight[T], drop func(T)) {
	f.mu.Lock()
	fl.refs--
	if fl.refs > 0 {
		f.mu.Unlock()
		return
	}
	if f.byID[key] == fl {
		delete(f.byID, key)
	}
	dropped := f.goLocked(func() { <-fl.done; fl.drop(drop) }) // before the work ends: land waits for both
	f.mu.Unlock()
	select {
	case <-fl.done:
		<-dropped
	default: // the work ends by itself; the caller need not wait
	}
	fl.cancel()
}

// goLocked runs a task in a goroutine. It returns a channel that is closed at the end of the task.
func (f *singleflight[T]) goLocked(task func()) <-chan struct{} {
	over := make(chan struct{})
	if f.tasks == nil {
		f.tasks = map[chan struct{}]struct{}{}
	}
	f.tasks[over] = struct{}{}
	go func() {
		task()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.tasks, over)
		close(over)
	}()
	return over
}

// land waits until all work has ended, or until ctx ends. This includes work that all callers have left.
func (f *singleflight[T]) land(ctx context.Context) {
	for {
		f.mu.Lock()
		var one chan struct{}
		for one = range f.tasks {
			break
		}
		f.mu.Unlock()
		if one == nil {
			return
		}
		select {
		case <-one:
		case <-ctx.Done():
			return
		}
	}
}

func (fl *flight[T]) drop(drop func(T)) {
	if fl.err == nil && drop != nil {
		drop(fl.value)
	}
}

// forget makes later callers start the work again; callers that have joined keep the value.
func (f *singleflight[T]) forget(fl *flight[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byID[fl.key] == fl {
		delete(f.byID, fl.key)
	}
}

// keyLocks are locks by name. A lock exists only while a caller holds it or waits for it.
type keyLocks struct {
	mu    sync.Mutex // guards what follows, and the users of each
	byKey map[string]*keyLock
}

type keyLock struct {
	taken chan struct{} // holds one value while a caller has the lock
	users int
}

// lock waits for the lock, or returns an error when ctx ends.
func (k *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	l := k.enter(key)
	select {
	case l.taken <- struct{}{}:
		return func() { <-l.taken; k.leave(key, l) }, nil
	case <-ctx.Done():
		k.leave(key, l)
		return nil, context.Cause(ctx)
	}
}

func (k *keyLocks) enter(key string) *keyLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byKey == nil {
		k.byKey = map[string]*keyLock{}
	}
	l := k.byKey[key]
	if l == nil {
		l = &keyLock{taken: make(chan struct{}, 1)}
		k.byKey[key] = l
	}
	l.users++
	return l
}

func (k *keyLocks) leave(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.byKey, key)
	}
}

// wait returns the value, or the error of ctx when that ends first.
func (fl *flight[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-fl.done:
		return fl.value, fl.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
