package image

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/image/remote"
)

// failed adds the operation, such as `pull image docker.io/library/busybox:latest`, to an error; it returns nil for
// nil. The text is bounded, because names in an image may have any length.
func failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fail.Error{Kind: kindOf(err), Detail: fail.Detail{Step: op}, Err: &clipped{fmt.Errorf("%s: %w", op, err)}}
}

// clipped is an error whose text is bounded.
type clipped struct{ error }

func (e *clipped) Error() string { return fail.Clip(e.error.Error()) }
func (e *clipped) Unwrap() error { return e.error }

// kindOf returns the kind of err, from the table of package fail. If the caller has left or a disk is full, that is the
// kind, because other errors are consequences.
func kindOf(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case diskspace.Lacking(err):
		return errdefs.ErrResourceExhausted
	}
	return fail.KindOf(err).Err
}

func isRemote(err error) bool { return fail.As[*remote.Error](err) }
