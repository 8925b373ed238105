package unpack

import (
	"encoding/json"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/diskspace"
	"berth/internal/fail/mark"
	"berth/internal/image/layer"
	"berth/internal/limit"
)

// The descriptors of the program. The trees of the layers below follow, the topmost first.
const (
	blobFD    = 0 // a pipe; nothing when it finalizes
	errorsFD  = 2 // for what the Go runtime says when it fails
	dirFD     = 3 // the layer's directory, which becomes the root
	controlFD = 4 // a socket of messages to the daemon and its answers
	lowersFD  = 5
)

// Job says what a process is to do. The first one is its one argument, as JSON; those that follow come by the socket,
// each with its descriptors: the blob, the layer's directory, and trees on top of those that the process has.
type Job struct {
	Finalize bool `json:"settle,omitempty"`
	Lowers   int  `json:"lowers,omitempty"` // trees of layers below that come with the job
	// Unmarked has, for each of these trees, whether no directory of it is opaque.
	Unmarked []bool `json:"unmarked,omitempty"`
	// Looks is what the image has of limit.ImageLooks.
	Looks     layer.Looks `json:"looks,omitzero"`
	More      bool        `json:"more,omitempty"` // others may follow: each directory and tree is a mount of its own
	Algorithm string      `json:"algorithm,omitempty"`
	// Mark is how many bytes are behind a tar that a program has inflated already; 0 for a blob as it was fetched.
	Mark int `json:"mark,omitempty"`
	// Proven says that the daemon compares the digest of the tar with one that the image promises.
	Proven bool `json:"proven,omitempty"`

	Limits  layer.Limits `json:"limits"`
	Memory  int64        `json:"memory"` // RLIMIT_DATA, before any window
	Threads int          `json:"threads"`
}

// MostTrees is how many trees may come with a job that follows another: the kernel passes 253 descriptors at once.
const MostTrees = 250

// maxMessage bounds a message. The longest path of a layer, quoted, fits.
const maxMessage = 64 << 10

// Message is what the process says, one a packet. It asks for a window or about a directory, and is answered by one
// byte; an Answer or a Failure is the last.
type Message struct {
	Window  int64    `json:"window,omitempty"` // bytes
	Opaque  *Place   `json:"opaque,omitempty"`
	Answer  *Answer  `json:"answer,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
}

// Place is a directory in the tree of a layer below.
type Place struct {
	Tree int    `json:"tree"`
	Path []byte `json:"path"`
}

// Answers of one byte.
const (
	answerNo  = 'n'
	answerYes = 'y'
)

// Answer says how it went.
type Answer struct {
	Diff   string        `json:"diff,omitempty"` // digest of the tar
	Mark   []byte        `json:"mark,omitempty"` // what was behind the tar
	Result *layer.Result `json:"result"`
}

// Failure is an error that passes from one process to another.
type Failure struct {
	Text   string     `json:"text"`
	Entry  string     `json:"entry,omitempty"` // with Reason: of a layer.HostileError
	Reason string     `json:"reason,omitempty"`
	Limit  string     `json:"limit,omitempty"` // name of the limit that is exceeded
	At     int64      `json:"at,omitempty"`    // and how much it allows
	Errno  unix.Errno `json:"errno,omitempty"`
	Low    bool       `json:"low,omitempty"` // less would be free than the floor asks
}

// maxText bounds the texts of a failure, which may have names of the layer.
const maxText = 8 << 10

// failureOf takes of an error what its kind depends on.
func failureOf(err error) *Failure {
	f := &Failure{Text: err.Error()}
	var hostile *layer.HostileError
	if errors.As(err, &hostile) {
		f.Entry, f.Reason = clip(hostile.Entry), clip(hostile.Reason)
	}
	var over *limit.Error
	if errors.As(err, &over) {
		f.Limit, f.At = over.Budget.Name, over.Budget.Limit
	}
	_ = errors.As(err, &f.Errno)
	var full *diskspace.Error
	if errors.As(err, &full) { // its text is the daemon's to make: here the layer is all that there is
		f.Low, f.Errno, f.Text = true, unix.ENOSPC, strings.TrimSuffix(f.Text, ": "+full.Text)
	}
	f.Text = clip(f.Text)
	return f
}

func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxText)], "?") }

// Error is the failure of a process as an error of this one: its text, and of its kind.
type Error struct {
	// Low says that the process left off because less would be free than the floor asks.
	Low  bool
	text string
	kind error
}

func (e *Error) Error() string { return e.text }

// Unwrap returns what the failure is of: a layer.HostileError, a limit.Error, an error of the kernel, or nothing.
func (e *Error) Unwrap() error { return e.kind }

// Err makes an error of a failure. A limit is one of Berth's own, or else none: a process that was led astray may name
// anything.
func (f *Failure) Err() error {
	e := &Error{Low: f.Low && f.Errno == unix.ENOSPC, text: clip(f.Text)}
	switch {
	case f.Limit != "":
		for _, b := range limit.All() {
			if b.Name == f.Limit {
				e.kind = quiet{b.At(f.At).Exceeded()}
			}
		}
	case f.Reason != "":
		e.kind = &layer.HostileError{Entry: clip(f.Entry), Reason: clip(f.Reason)}
	case f.Errno != 0:
		e.kind = f.Errno
	}
	return e
}

// quiet is an error whose remedy is in the text of another one already.
type quiet struct{ error }

func (q quiet) Unwrap() error { return q.error }

// Details returns what the limit is, for those who do not read the text.
func (q quiet) Details() mark.Detail {
	var e *mark.Error
	if errors.As(q.error, &e) {
		return e.Detail
	}
	return mark.Detail{}
}

func encode(v any) ([]byte, error) { return json.Marshal(v) }
