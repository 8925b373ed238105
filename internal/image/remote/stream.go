package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// stream is one response on its way: the bytes from at to end of a blob.
type stream struct {
	watch
	ctx    context.Context
	mirror *mirrorState
	body   io.ReadCloser
	at     int64
	end    int64

	ranges  rangeSupport // what the answer says of ranges
	chunked bool         // the host sends no length beforehand
}

// Read reads, and says what went wrong as a faultError. It returns io.EOF at the end of the stream alone.
func (s *stream) Read(p []byte) (int, error) {
	n, _, err := s.next(p)
	return n, err
}

// next is Read that says how long it waited.
func (s *stream) next(p []byte) (n int, took time.Duration, err error) {
	if s.at == s.end {
		return 0, 0, io.EOF
	}
	n, took, err = s.read(s.body, p[:min(int64(len(p)), s.end-s.at)])
	s.at += int64(n)
	switch {
	case err == nil:
		return n, took, nil
	case s.at == s.end:
		return n, took, nil // whatever else it says, all is there
	case s.ctx.Err() != nil:
		err = context.Cause(s.ctx)
	case err == io.EOF && s.chunked: // its end was sent, no connection broke off
		text := fmt.Sprintf("what it serves ended after %d bytes", s.at)
		return n, took, &faultError{&fault{kind: errdefs.ErrDataLoss, text: text}}
	}
	return n, took, &faultError{faultOfError(err)}
}

func (s *stream) close() {
	_ = s.body.Close()
	s.cancel(nil)
}

// rangeSupport is what is known of a host's ranges, for one blob.
type rangeSupport int

const (
	// rangesPossible: it has not been asked for one yet, and does not say that it serves none.
	rangesPossible rangeSupport = iota
	rangesServed                // it has answered one
	rangesNone                  // it says so, or answers all
)

// announced reads the Accept-Ranges header of an answer to a plain request. That it is missing means nothing: most
// public registries serve ranges without it. Nor does `bytes` prove anything: a cache that fetches the blob itself may
// announce ranges and then send all.
func announced(h http.Header) rangeSupport {
	switch strings.ToLower(strings.TrimSpace(h.Get("Accept-Ranges"))) {
	case "", "bytes":
		return rangesPossible
	default:
		return rangesNone
	}
}

// open asks a mirror for the bytes from r.from to r.to. From a host that serves no ranges come all that follow, after
// those before were read and dropped; a strict request takes that for a fault.
func (b *Blob) open(ctx context.Context, s *mirrorState, r request) (*stream, *fault) {
	ctx, cancel := context.WithCancelCause(ctx)
	stall := s.host.stall
	switch {
	case r.manifest: // is small: a cache has it as soon as its own registry answers
	case r.strict:
		r.answerIn = stall // the host sends this blob already: it has nothing to fetch before it answers
	default:
		r.answerIn = s.host.firstByte
	}
	st := &stream{
		ctx: ctx, mirror: s, watch: watch{clock: b.mirrors.clock, first: r.answerIn, limit: stall, cancel: cancel},
	}
	if b.mirrors.mustSendAll(s) {
		r.ranged = false
	}
	resp, f := s.host.ask(ctx, r, &s.target)
	if f == nil {
		st.body = resp.Body
		f = st.accept(resp, r, b.desc.Size)
	}
	if f == nil && r.strict && resp.StatusCode != http.StatusPartialContent {
		f = &fault{kind: errdefs.ErrUnknown, text: "it serves no ranges"}
	}
	if f == nil && st.at < r.from {
		f = st.skip(r.from)
	}
	if f != nil {
		if st.body != nil {
			_ = st.body.Close()
		}
		cancel(nil)
		return nil, f
	}
	return st, nil
}

// accept reads from the headers which bytes come.
func (s *stream) accept(resp *http.Response, r request, size int64) *fault {
	s.chunked = len(resp.TransferEncoding) > 0 && resp.TransferEncoding[0] == "chunked"
	if resp.StatusCode != http.StatusPartialContent {
		s.at, s.end, s.ranges = 0, size, announced(resp.Header)
		if r.ranged {
			s.ranges = rangesNone
		}
		if n := resp.ContentLength; n >= 0 && n != size {
			return &fault{kind: errdefs.ErrDataLoss,
				text: fmt.Sprintf("what it serves has %d bytes, not the %d promised", n, size)}
		}
		return nil
	}
	from, to, total, ok := contentRange(resp.Header.Get("Content-Range"))
	switch {
	case !r.ranged || !ok || from != r.from || to > r.to || to <= from:
		text := fmt.Sprintf("it answers bytes %d to %d with the range %.80q", r.from, r.to-1,
			resp.Header.Get("Content-Range"))
		return &fault{kind: errdefs.ErrUnknown, text: text, unfit: true}
	case total >= 0 && total != size:
		return &fault{kind: errdefs.ErrDataLoss,
			text: fmt.Sprintf("what it serves has %d bytes, not the %d promised", total, size)}
	}
	s.at, s.end, s.ranges = from, to, rangesServed
	return nil
}

// contentRange takes apart `bytes 0-9/100`: the first byte, the one behind the last, and the size, -1 when it is not
// said.
func contentRange(v string) (from, to, size int64, ok bool) {
	v, ok = strings.CutPrefix(v, "bytes ")
	span, total, ok2 := strings.Cut(v, "/")
	first, last, ok3 := strings.Cut(span, "-")
	from, err := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	size, err3 := int64(-1), error(nil)
	if total != "*" {
		size, err3 = strconv.ParseInt(total, 10, 64)
	}
	ok = ok && ok2 && ok3 && err == nil && err2 == nil && err3 == nil && from >= 0 && to >= from
	return from, to + 1, size, ok
}

// skip reads up to a byte.
func (s *stream) skip(to int64) *fault {
	buf := make([]byte, 64<<10)
	for s.at < to {
		if _, err := s.Read(buf[:min(int64(len(buf)), to-s.at)]); err != nil {
			return faultOfError(err)
		}
	}
	return nil
}

// watch ends a request whose host sends too little: nothing within first, and then less than minProgress within limit,
// counting only time spent waiting.
type watch struct {
	clock  clock
	first  time.Duration // for the first byte; limit when 0
	limit  time.Duration
	cancel context.CancelCauseFunc
	began  bool // the first byte is there
	waited time.Duration
	got    int
}

// read reads from r under the watch, and says how long that took.
func (w *watch) read(r io.Reader, p []byte) (n int, took time.Duration, err error) {
	start, limit, reason := w.clock.Now(), w.limit, stalled
	if !w.began && w.first > 0 {
		limit, reason = w.first, late
	}
	stop := w.clock.AfterFunc(limit-w.waited, func() { w.cancel(&faultError{reason(limit)}) })
	n, err = r.Read(p)
	stop()
	took = w.clock.Now().Sub(start)
	w.waited += took
	first := n > 0 && !w.began
	if w.got += n; w.got >= minProgress || first {
		w.waited, w.got = 0, 0
	}
	w.began = w.began || first
	return n, took, err
}

// watched is a reader under a watch.
type watched struct {
	*watch
	r io.Reader
}

func (w watched) Read(p []byte) (int, error) {
	n, _, err := w.watch.read(w.r, p)
	return n, err
}
