// Package limit has the limits of what images, registries, containers and clients may use, each once: what is counted,
// how much of it there may be, and the key that changes it. What goes beyond any of them gets the same error.
package limit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/fail/mark"
)

// Budget is a limit on what something may use. It is a value: At and With return a changed one.
type Budget struct {
	Name   string // what is counted, such as "layers of an image"
	Key    string // of the configuration that sets the limit; "" for a fixed one
	Unit   Unit
	Limit  int64  // of a fixed one, or by At; 0 is no limit
	Used   int64  // by all who share it, by With; 0 where each has a budget of its own
	Beyond string // what becomes of what would use more
	Advice string // what to do about it beside raising the limit; may be empty
}

// Unit is what a Budget counts in.
type Unit string

// The units. Number is that of the things that the Budget's name names.
const (
	Number Unit = ""
	Bytes  Unit = "bytes"
)

// At returns b with the limit that its key sets.
func (b Budget) At(limit int64) Budget {
	b.Limit = limit
	return b
}

// With returns b with what is used of it.
func (b Budget) With(used int64) Budget {
	b.Used = used
	return b
}

// Check returns an error when used is beyond the limit.
func (b Budget) Check(used int64) error {
	if b.Limit <= 0 || used <= b.Limit {
		return nil
	}
	return b.exceeded(strconv.FormatInt(used, 10)+b.unit()+", ", used)
}

// Exceeded is the error of what went beyond the limit and was not counted to its end.
func (b Budget) Exceeded() error { return b.exceeded("", b.Limit+1) }

func (b Budget) exceeded(found string, used int64) error {
	text := fmt.Sprintf("%s: %smore than the %d%s allowed", b.Name, found, b.Limit, b.unit())
	detail := mark.Detail{Limit: b.Name, Key: b.Key, Remedy: b.Advice}
	if b.Key != "" {
		detail.Remedy += " or raise " + b.Key
	}
	detail.Remedy = strings.TrimPrefix(detail.Remedy, " or ")
	return &mark.Error{Kind: errdefs.ErrResourceExhausted, Detail: detail, Err: &Error{b.With(used), text}}
}

// Error says which limit is reached.
type Error struct {
	Budget Budget // with Used as far as it was counted
	text   string
}

func (e *Error) Error() string { return e.text }

// Amount returns n in the budget's unit.
func (b Budget) Amount(n int64) string { return strconv.FormatInt(n, 10) + b.unit() }

func (b Budget) unit() string {
	if b.Unit == Number {
		return ""
	}
	return " " + string(b.Unit)
}
