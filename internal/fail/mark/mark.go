// Package mark has the errors of package fail without the table of kinds: an error that is of a kind, and what it is
// about. It depends on next to nothing, for programs that must be small and start fast; everybody else uses package
// fail, whose types these are.
package mark

import "errors"

// Error is an error of a kind, with details of what it is about.
type Error struct {
	Kind   error // Err of a Kind of package fail; nil leaves the kind to Err
	Detail Detail
	Err    error
}

// Detail says what an error is about. Its values are for programs: the text of the error has them in words.
type Detail struct {
	Pod       string // id of the pod, or namespace/name of one that has none yet
	Container string // id of the container, or the name of one that has none yet
	Step      string // of which plan or operation, such as `pod: network`
	// Limit names the limit that is reached, and Key the key of the configuration that raises it.
	Limit, Key string
	Remedy     string // what to do about it
}

// Error returns the text in words, with the remedy behind it.
func (e *Error) Error() string {
	if e.Detail.Remedy == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + ": " + e.Detail.Remedy
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Kind == nil {
		return []error{e.Err}
	}
	return []error{e.Kind, e.Err}
}

// Details returns the details of the error itself.
func (e *Error) Details() Detail { return e.Detail }

// As is errors.As without a variable.
func As[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}
