package pod

import "fmt"

// kindError is an error of a kind that its text does not repeat: the kind is for the gRPC code, the text for a person.
type kindError struct {
	err, kind error
}

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.err, e.kind} }

// Fail makes an error of a kind of package errdefs.
func Fail(kind error, format string, args ...any) error {
	return &kindError{fmt.Errorf(format, args...), kind}
}
