package sandbox

import (
	"errors"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/diskspace"
	"berth/internal/fail"
)

// NotFound says that there is no such thing with that id.
func NotFound(what string, id ID) error {
	return fail.New(errdefs.ErrNotFound, "%s %q: not found", what, string(id))
}

// GoneError says that the object ended while the caller waited to work on it.
func GoneError(what string, id ID, state State) error {
	return fail.New(errdefs.ErrFailedPrecondition, "%s %s is %s", what, id, state)
}

// InPod says of which pod err is, which may have no id that its caller knows.
func InPod(m *runtimeapi.PodSandboxMetadata, err error) error {
	name := m.GetNamespace() + "/" + m.GetName()
	return fail.About(fail.Detail{Pod: name}, "pod %s: %w", name, err)
}

// InContainer says of which container err is, and at what.
func InContainer(at, name string, of ID, err error) error {
	return fail.About(fail.Detail{Pod: string(of), Container: name}, "%scontainer %s of pod %s: %w", at, name, of, err)
}

// NilIfGone takes what is not there for done: what is stopped or removed need not be there.
func NilIfGone(err error) error {
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	return err
}

// What the kernel says of a path or an option of a request, and what it says of a node that lacks something for a
// while. All else that it says is the node's own trouble.
var (
	errnosOfRequest = []syscall.Errno{
		syscall.ENOENT, syscall.ENOTDIR, syscall.EISDIR, syscall.EEXIST, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL,
		syscall.ENODEV, syscall.ENXIO, syscall.ENOTSUP,
	}
	// PassingErrnos may be gone in a moment.
	PassingErrnos = []syscall.Errno{
		syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.EINTR, syscall.EBUSY, syscall.ETIMEDOUT,
		syscall.ESTALE,
	}
)

// Invalid marks an error as the request's own fault, where nothing more precise is known of it. What is the node's is
// marked so: another request does not help.
func Invalid(err error) error {
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) || errdefs.IsInvalidArgument(err) ||
		errdefs.IsInternal(err) || errdefs.IsUnavailable(err) || errdefs.IsCanceled(err) ||
		errdefs.IsDeadlineExceeded(err) || errdefs.IsResourceExhausted(err) || diskspace.Lacking(err) {
		return err
	}
	var errno syscall.Errno
	switch {
	case !errors.As(err, &errno) || slices.Contains(errnosOfRequest, errno):
		return fail.New(errdefs.ErrInvalidArgument, "%w", err)
	case slices.Contains(PassingErrnos, errno):
		return fail.New(errdefs.ErrUnavailable, "%w", err)
	}
	return fail.New(errdefs.ErrInternal, "%w", err)
}
