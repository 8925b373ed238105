package layer

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// A HostileError names an entry of a layer that asks for something which no well-formed layer contains.
type HostileError struct{ Entry, Reason string }

func (e *HostileError) Error() string {
	return fmt.Sprintf("layer entry %q %s", e.Entry, e.Reason)
}

// Unwrap makes the error a failed precondition: trying again would not help.
func (e *HostileError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// inside turns the name of an entry into a clean path relative to the layer's root; "." is the root. It reads an
// absolute name as relative to the root, as image builders do. A name that leads above the root is a HostileError.
func inside(name string) (string, error) {
	if strings.IndexByte(name, 0) >= 0 {
		return "", &HostileError{name, "has a NUL in its name"}
	}
	p := path.Clean(strings.TrimLeft(name, "/"))
	if p == ".." || strings.HasPrefix(p, "../") {
		return "", &HostileError{name, "leads out of the layer"}
	}
	return p, nil
}

// jsonSafe quotes the names of an entry for JSON, which holds UTF-8 only, while the name of a file or of an attribute
// may have any bytes. A name that is not UTF-8 is written as a Go string literal behind a NUL; no name has a NUL, so
// unquote can tell.
func jsonSafe(e entry) entry { return renamed(e, quote) }

func jsonRaw(e entry) entry { return renamed(e, unquote) }

func renamed(e entry, by func(string) string) entry {
	e.Path, e.Link = by(e.Path), by(e.Link)
	for name := range e.Xattrs {
		if by(name) == name {
			continue
		}
		other := make(map[string][]byte, len(e.Xattrs))
		for name, value := range e.Xattrs {
			other[by(name)] = value
		}
		e.Xattrs = other
		break
	}
	return e
}

func quote(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return "\x00" + strconv.QuoteToASCII(s)
}

func unquote(s string) string {
	if !strings.HasPrefix(s, "\x00") {
		return s
	}
	raw, err := strconv.Unquote(s[1:])
	if err != nil {
		return s
	}
	return raw
}
