package image

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"berth/internal/image/layer"
	"berth/internal/image/remote"
	"berth/internal/room"
)

// Kind says what sort of failure an Error is, for whoever maps it to a status code.
type Kind int

// The kinds, each with the gRPC code it stands for.
const (
	Internal           Kind = iota // Internal: none of the others
	InvalidArgument                // the reference, platform or archive is malformed
	NotFound                       // no such image here or in the registry
	Unauthenticated                // the registry wants other credentials
	PermissionDenied               // the registry knows the caller and refuses
	Unavailable                    // the registry cannot be reached or cannot answer now
	DataLoss                       // what came is not what its digest, size or diff id promised
	FailedPrecondition             // it is no image that can run here: an artifact, a hostile layer
	ResourceExhausted              // a full disk or a configured bound
	Canceled                       // the caller gave up
	DeadlineExceeded               // the caller's time was up
	Refused                        // the Verifier does not accept it
)

// RegistryUnavailable begins the text of every error of the kind Unavailable: the kubelet looks for it.
const RegistryUnavailable = "RegistryUnavailable"

// SignatureValidationFailed begins the text of every error of the kind Refused: the kubelet looks for it.
const SignatureValidationFailed = "SignatureValidationFailed"

// Error is what all methods of a Store return.
type Error struct {
	Kind Kind
	Op   string // such as `pull image docker.io/library/busybox:latest`
	Err  error
}

func (e *Error) Error() string {
	text := clip(e.Op + ": " + e.Err.Error())
	switch e.Kind {
	case Unavailable:
		return RegistryUnavailable + ": " + text
	case Refused:
		return SignatureValidationFailed + ": " + text
	}
	return text
}

// maxText bounds what an error says, in bytes: an image may bring names of any length, and a gRPC status none over some kilobytes.
const maxText = 2 << 10

func clip(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText/2], "") + " … " + strings.ToValidUTF8(text[len(text)-maxText/2:], "")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf says what kind of failure err is; Internal for what did not come from this package.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// kindError marks a cause with its kind where it is known best; fail carries it to the Error.
type kindError struct {
	kind Kind
	err  error
}

func (e *kindError) Error() string { return e.err.Error() }
func (e *kindError) Unwrap() error { return e.err }

func errorf(kind Kind, format string, args ...any) error {
	return &kindError{kind, fmt.Errorf(format, args...)}
}

// fail makes the Error of an operation from its cause, nil from nil.
func fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{classify(err), op, err}
}

func classify(err error) Kind {
	var known *kindError
	var outer *Error
	var hostile *layer.HostileError
	var limit *layer.LimitError
	var registry *remote.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return Canceled
	case room.Lacking(err):
		return ResourceExhausted
	case errors.As(err, &known):
		return known.kind
	case errors.As(err, &outer):
		return outer.Kind
	case errors.As(err, &registry):
		return kindsOfRemote[registry.Kind]
	case errors.As(err, &hostile):
		return FailedPrecondition
	case errors.As(err, &limit):
		return ResourceExhausted
	}
	return Internal
}

// kindsOfRemote are the kinds of what registries do.
var kindsOfRemote = map[remote.Kind]Kind{
	remote.Refused: Internal, remote.Misconfigured: Internal, remote.Invalid: InvalidArgument, remote.NotFound: NotFound,
	remote.Unauthenticated: Unauthenticated, remote.Denied: PermissionDenied, remote.Unavailable: Unavailable, remote.Lied: DataLoss,
}

func isRemote(err error) bool {
	var e *remote.Error
	return errors.As(err, &e)
}
