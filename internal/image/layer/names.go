package layer

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// A HostileError says which entry of a layer tries what no honest layer does.
type HostileError struct{ Entry, Reason string }

func (e *HostileError) Error() string {
	return fmt.Sprintf("layer entry %q %s", e.Entry, e.Reason)
}

// Unwrap says that no other request makes the layer one that can be unpacked.
func (e *HostileError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// inside cleans the name of an entry into a path relative to the layer's root; "." is the root. An absolute name is
// meant relative to the root, as every builder means it; one that climbs out of it is hostile.
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

// JSON holds only UTF-8, a file name any bytes. A name that is not UTF-8, or looks like one that was quoted, is written
// as a Go string literal behind a NUL, which no name contains.
func jsonSafe(e entry) entry {
	e.Path, e.Link = quote(e.Path), quote(e.Link)
	return e
}

func jsonRaw(e entry) entry {
	e.Path, e.Link = unquote(e.Path), unquote(e.Link)
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
