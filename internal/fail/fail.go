// Package fail is Berth's vocabulary of errors: the kinds that an error may be of, the details that it may carry, and
// what each sort of client is told of it.
//
// A kind is an error of package errdefs, of CRI or of the kernel that an error wraps; the table of kinds gives it a
// gRPC code, the word that a kubelet looks for, an exit code of the command line and a label of metrics. Of several
// kinds in one error the outermost decides, and among errors that stand beside each other the first: whoever adds a
// kind to an error knows more than the one who made the error.
package fail

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"berth/internal/fail/mark"
)

// Error is an error of a kind, with details of what it is about.
type Error = mark.Error

// Detail says what an error is about. Its values are for programs: the text of the error has them in words.
type Detail = mark.Detail

// Detailed is an error that knows details. It is asked by Details.
type Detailed interface{ Details() Detail }

// New makes an error of a kind. The format is that of fmt.Errorf.
func New(kind error, format string, args ...any) error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// About adds details to an error and leaves its kind. The format is that of fmt.Errorf, and wraps the error by %w.
func About(d Detail, format string, args ...any) error {
	return &Error{Detail: d, Err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of err: unknown when nothing in it says one. A status of gRPC is of the kind that its details
// name, else of the first with its code.
func KindOf(err error) Kind {
	k, _ := find(err)
	return k
}

// Is reports whether err is of the kind that kind marks. Other than errors.Is it does not see kinds that another one
// covers.
func Is(err, kind error) bool { return err != nil && KindOf(err).Err == kind }

// find returns the kind of err, and the code, which some kinds leave to another one: those are seen wherever they
// stand.
func find(err error) (Kind, codes.Code) {
	var adds, decides *Kind
	walk(err, func(e error) bool {
		k := marked(e)
		switch {
		case k == nil:
		case k.Code == codes.OK && adds == nil:
			adds = k
		case k.Code != codes.OK && decides == nil:
			decides = k
		}
		return statusOf(e) == nil
	})
	if decides == nil {
		decides = &unknown
	}
	if adds != nil {
		return *adds, decides.Code
	}
	return *decides, decides.Code
}

// marked returns the kind that e itself marks, without what it wraps. An error may say so by a method Is.
func marked(e error) *Kind {
	if s := statusOf(e); s != nil {
		k := kindOfStatus(s)
		return &k
	}
	is, asks := e.(interface{ Is(error) bool })
	for i, k := range kinds {
		if e == k.Err || asks && is.Is(k.Err) {
			return &kinds[i]
		}
	}
	return nil
}

// walk calls visit for err and all that it wraps, the outermost first, until visit returns false.
func walk(err error, visit func(error) bool) bool {
	if err == nil {
		return true
	}
	if !visit(err) {
		return false
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return walk(e.Unwrap(), visit)
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if !walk(part, visit) {
				return false
			}
		}
	}
	return true
}

// Details collects what err and the errors in it know: of each detail the outermost one that is known.
func Details(err error) Detail {
	var all Detail
	walk(err, func(e error) bool {
		if known, ok := e.(Detailed); ok {
			fill(&all, known.Details())
		} else if s := statusOf(e); s != nil {
			fill(&all, detailOf(s))
		}
		return true
	})
	return all
}

func fill(d *Detail, from Detail) {
	known := named(&from)
	for name, to := range named(d) {
		*to = cmp.Or(*to, *known[name])
	}
}

// named are the details by the names that they have in a status.
func named(d *Detail) map[string]*string {
	return map[string]*string{"pod": &d.Pod, "container": &d.Container, "step": &d.Step, "limit": &d.Limit, "key": &d.Key,
		"remedy": &d.Remedy}
}

// maxText bounds the text that a client is told, in bytes: an image or a program may bring text of any length, and gRPC
// has a limit for the header that carries it.
const maxText = 4 << 10

// Clip shortens a text in its middle, and makes it valid UTF-8.
func Clip(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= maxText {
		return text
	}
	half := (maxText - len(" … ")) / 2
	return strings.ToValidUTF8(text[:half], "") + " … " + strings.ToValidUTF8(text[len(text)-half:], "")
}

// As is errors.As without a variable.
func As[E error](err error) bool { return mark.As[E](err) }
