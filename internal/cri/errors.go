package cri

import (
	"context"
	"errors"
	"syscall"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/image"
	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/pod"
)

// ToStatus is the one place where an error becomes a gRPC status. The kubelet acts on NotFound; the others tell people
// and retries apart.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(code(err), err.Error())
}

// imageCodes says what an image's errors mean. The two whose text begins with a word that the kubelet looks for are Unknown:
// of every other code its client puts "rpc error: code = …" before the text, and the word is no longer at the beginning.
var imageCodes = map[image.Kind]codes.Code{
	image.InvalidArgument: codes.InvalidArgument, image.NotFound: codes.NotFound, image.Unauthenticated: codes.Unauthenticated,
	image.PermissionDenied: codes.PermissionDenied, image.Unavailable: codes.Unknown, image.DataLoss: codes.DataLoss,
	image.FailedPrecondition: codes.FailedPrecondition, image.ResourceExhausted: codes.ResourceExhausted,
	image.Refused: codes.Unknown, image.Canceled: codes.Canceled, image.DeadlineExceeded: codes.DeadlineExceeded,
}

func code(err error) codes.Code {
	if k := image.KindOf(err); k != image.Internal {
		return imageCodes[k]
	}
	switch {
	case as[*network.AnnotationError](err), as[*network.CIDRError](err), as[*network.SysctlError](err):
		return codes.InvalidArgument
	case as[*network.NotReadyError](err), as[*network.MissingPluginError](err):
		return codes.Unavailable
	case as[*op.SupersededError](err), errors.Is(err, op.ErrAbandoned):
		return codes.Aborted
	case errdefs.IsInvalidArgument(err):
		return codes.InvalidArgument
	case errdefs.IsNotFound(err):
		return codes.NotFound
	case errdefs.IsAlreadyExists(err):
		return codes.AlreadyExists
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errdefs.IsResourceExhausted(err):
		return codes.ResourceExhausted
	case errdefs.IsUnauthorized(err):
		return codes.Unauthenticated
	case errdefs.IsPermissionDenied(err):
		return codes.PermissionDenied
	case errdefs.IsFailedPrecondition(err):
		return codes.FailedPrecondition
	case errdefs.IsDataLoss(err):
		return codes.DataLoss
	case errdefs.IsUnavailable(err):
		return codes.Unavailable
	case errdefs.IsInternal(err):
		return codes.Internal
	case errdefs.IsNotImplemented(err):
		return codes.Unimplemented
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return codes.Unknown
}

func as[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

// end stops or removes what the name means. What is not there has ended already; but what do does not find on its way, such
// as the pod's runtime handler, is a failure, which a kubelet must not take for the pod that is not there.
func end(resolve func(name string) (pod.ID, error), name string, do func(pod.ID) error) error {
	id, err := resolve(name)
	if err != nil {
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	}
	if err = do(id); errdefs.IsNotFound(err) {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return err
}
