package fail

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// Kind is a row of the table of kinds: how an error of that kind is found, and what each sort of client is told of it.
type Kind struct {
	Err  error      // marks an error that is of the kind: one of package errdefs, of CRI, of the kernel
	Name string     // in metrics and in the details of a status
	Code codes.Code // of gRPC; OK for a kind that leaves the code to another one in the error
	Word string     // begins the text of a status, since a kubelet looks for it
	Exit int        // code of a berth command
	// Remedy is told with an error that knows none itself: the kernel's words say what failed, and not what to do.
	Remedy string
}

// Exit codes of berth commands that say more than that something failed.
const (
	ExitFailure  = 1 // any other reason
	ExitInvalid  = 2 // the request makes no sense: another one is needed
	ExitNotFound = 3 // what is named is not there
	ExitRetry    = 4 // it may work later: something does not answer, or was interrupted
	ExitRefused  = 5 // credentials, a signature or a permission is missing
	ExitNoRoom   = 6 // a limit is reached, or a disk is full
)

// kinds is the table of kinds. A new kind is a row here, and its line in testdata/kinds.txt.
//
// The words are those of k8s.io/cri-api/pkg/errors. An error that begins with one of the first two has the code
// Unknown: of every other code the kubelet's client puts "rpc error: code = …" before the text, and no longer finds the
// word.
var kinds = []Kind{
	{Err: crierrors.ErrRegistryUnavailable, Name: "RegistryUnavailable", Code: codes.Unknown,
		Word: crierrors.ErrRegistryUnavailable.Error(), Exit: ExitRetry},
	{Err: crierrors.ErrSignatureValidationFailed, Name: "SignatureValidationFailed", Code: codes.Unknown,
		Word: crierrors.ErrSignatureValidationFailed.Error(), Exit: ExitRefused},
	{Err: crierrors.ErrImageVolumeMountFailed, Name: "ImageVolumeMountFailed",
		Word: crierrors.ErrImageVolumeMountFailed.Error(), Exit: ExitFailure},
	{Err: errdefs.ErrInvalidArgument, Name: "InvalidArgument", Code: codes.InvalidArgument, Exit: ExitInvalid},
	{Err: errdefs.ErrNotFound, Name: "NotFound", Code: codes.NotFound, Exit: ExitNotFound},
	{Err: errdefs.ErrAlreadyExists, Name: "AlreadyExists", Code: codes.AlreadyExists, Exit: ExitFailure},
	{Err: errdefs.ErrResourceExhausted, Name: "ResourceExhausted", Code: codes.ResourceExhausted, Exit: ExitNoRoom},
	{Err: syscall.ENOSPC, Name: "DiskFull", Code: codes.ResourceExhausted, Exit: ExitNoRoom},
	{Err: syscall.EDQUOT, Name: "DiskQuota", Code: codes.ResourceExhausted, Exit: ExitNoRoom},
	{Err: syscall.EMFILE, Name: "OpenFiles", Code: codes.ResourceExhausted, Exit: ExitNoRoom,
		Remedy: "a process of the runtime has as many files open as it may: end clients and sessions that are not needed, " +
			"or raise LimitNOFILE of its unit"},
	{Err: syscall.ENFILE, Name: "OpenFilesOfNode", Code: codes.ResourceExhausted, Exit: ExitNoRoom,
		Remedy: "the node has as many files open as it may: look at /proc/sys/fs/file-nr, or raise the sysctl fs.file-max"},
	{Err: syscall.ENOMEM, Name: "Memory", Code: codes.ResourceExhausted, Exit: ExitNoRoom,
		Remedy: "the kernel has no memory for it: look at free -m, at dmesg, and at the memory limit of the unit"},
	{Err: syscall.EAGAIN, Name: "Processes", Code: codes.ResourceExhausted, Exit: ExitNoRoom,
		Remedy: "the kernel makes no more processes: look at TasksMax of the unit, at pids.max of the cgroups above the " +
			"pod's, and at the sysctls kernel.pid_max and kernel.threads-max"},
	{Err: syscall.EROFS, Name: "DiskReadOnly", Code: codes.Unknown, Exit: ExitNoRoom},
	{Err: errdefs.ErrUnauthenticated, Name: "Unauthenticated", Code: codes.Unauthenticated, Exit: ExitRefused},
	{Err: errdefs.ErrPermissionDenied, Name: "PermissionDenied", Code: codes.PermissionDenied, Exit: ExitRefused},
	{Err: errdefs.ErrFailedPrecondition, Name: "FailedPrecondition", Code: codes.FailedPrecondition, Exit: ExitFailure},
	{Err: errdefs.ErrAborted, Name: "Aborted", Code: codes.Aborted, Exit: ExitRetry},
	{Err: errdefs.ErrUnavailable, Name: "Unavailable", Code: codes.Unavailable, Exit: ExitRetry},
	{Err: errdefs.ErrDataLoss, Name: "DataLoss", Code: codes.DataLoss, Exit: ExitFailure},
	{Err: errdefs.ErrInternal, Name: "Internal", Code: codes.Internal, Exit: ExitFailure},
	{Err: errdefs.ErrNotImplemented, Name: "Unimplemented", Code: codes.Unimplemented, Exit: ExitFailure},
	{Err: context.DeadlineExceeded, Name: "DeadlineExceeded", Code: codes.DeadlineExceeded, Exit: ExitRetry},
	{Err: context.Canceled, Name: "Canceled", Code: codes.Canceled, Exit: ExitFailure},
	unknown,
}

// Lacking reports whether err says what the machine or the daemon lacks now: space, memory, descriptors or processes.
// It says nothing of what was worked on, and the same work may succeed later. So an error of the kernel counts whatever
// kind whoever met it has made of it, and a limit that is Berth's own does not.
func Lacking(err error) bool {
	return slices.ContainsFunc(kinds, func(k Kind) bool {
		errno, ok := k.Err.(syscall.Errno)
		return ok && k.Code == codes.ResourceExhausted && errors.Is(err, errno)
	})
}

// unknown is the kind of errors that nothing marks.
var unknown = Kind{Err: errdefs.ErrUnknown, Name: "Unknown", Code: codes.Unknown, Exit: ExitFailure}
