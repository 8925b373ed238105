package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/cdi"
	"berth/internal/cgroup/limits"
	"berth/internal/diskspace"
	"berth/internal/fail"
	"berth/internal/image/layer"
	"berth/internal/image/verifier"
	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
	"berth/internal/selinux"
	"berth/test/golden"
)

// TestAnswers compares what a client is told of each sort of error, and of those that hold another, with
// testdata/errors.txt: the code that it acts on, and the text with the word that a kubelet looks for.
func TestAnswers(t *testing.T) {
	no := errors.New("no")
	step := func(err error) error { return &op.StepError{Plan: "pod", Step: "network", Err: err} }
	superseded := &op.SupersededError{By: "stop"}
	plugin := &network.PluginError{Plugin: "bridge", Verb: "ADD", Network: "n", Err: no}
	missing := &network.MissingPluginError{Plugin: "bridge", Dirs: []string{"/opt/cni/bin"}}
	invalid := fail.New(errdefs.ErrInvalidArgument, "mount: %w", syscall.ENOENT)
	cases := []struct {
		name string
		err  error
	}{
		{"plain", no},
		{"status", status.Error(codes.OutOfRange, "as it is")},
		{"deadline", context.DeadlineExceeded},
		{"canceled", context.Canceled},
		{"ENOSPC", fmt.Errorf("write record: %w", syscall.ENOSPC)},
		{"EDQUOT", fmt.Errorf("write record: %w", syscall.EDQUOT)},
		{"EIO", fmt.Errorf("write record: %w", syscall.EIO)},
		{"room", diskspace.Explain(fmt.Errorf("write record: %w", syscall.EROFS), "/nowhere", "remove images")},

		{"errdefs unknown", errdefs.ErrUnknown},
		{"errdefs invalid argument", fmt.Errorf("pod: %w", errdefs.ErrInvalidArgument)},
		{"errdefs not found", fmt.Errorf("pod: %w", errdefs.ErrNotFound)},
		{"errdefs already exists", errdefs.ErrAlreadyExists},
		{"errdefs permission denied", errdefs.ErrPermissionDenied},
		{"errdefs unauthenticated", errdefs.ErrUnauthenticated},
		{"errdefs resource exhausted", errdefs.ErrResourceExhausted},
		{"errdefs failed precondition", errdefs.ErrFailedPrecondition},
		{"errdefs data loss", errdefs.ErrDataLoss},
		{"errdefs unavailable", errdefs.ErrUnavailable},
		{"errdefs internal", errdefs.ErrInternal},
		{"errdefs not implemented", errdefs.ErrNotImplemented},

		{"image canceled", imageError(context.Canceled, "pull image x", context.Canceled)},
		{"image deadline", imageError(context.DeadlineExceeded, "pull image x", context.DeadlineExceeded)},
		{"image data loss", imageError(errdefs.ErrDataLoss, "pull image x", no)},
		{"image failed precondition", imageError(errdefs.ErrFailedPrecondition, "pull image x",
			&layer.HostileError{Entry: "a", Reason: "leads out"})},
		{"image internal", imageError(errdefs.ErrUnknown, "pull image x", no)},
		{"image invalid argument", imageError(errdefs.ErrInvalidArgument, "pull image x", no)},
		{"image not found", imageError(errdefs.ErrNotFound, "pull image x", no)},
		{"image permission denied", imageError(errdefs.ErrPermissionDenied, "pull image x", no)},
		{"image refused", imageError(crierrors.ErrSignatureValidationFailed, "pull image x",
			&verifier.Refusal{Verifier: "v", Reason: "revoked"})},
		{"image resource exhausted", imageError(errdefs.ErrResourceExhausted, "pull image x", errors.New("too much"))},
		{"image unauthenticated", imageError(errdefs.ErrUnauthenticated, "pull image x", no)},
		{"image unavailable", imageError(crierrors.ErrRegistryUnavailable, "pull image x", no)},
		{"image unavailable, out of time",
			imageError(crierrors.ErrRegistryUnavailable, "pull image x", context.DeadlineExceeded)},
		{"image with a long text", imageError(errdefs.ErrDataLoss, "pull image x",
			errors.New(strings.Repeat("long ", 5000)))},

		{"network annotation", fail.New(errdefs.ErrInvalidArgument, "annotation %s: %q: %w", "a", "v", no)},
		{"network CIDR", &network.CIDRError{Value: "x", Err: no}},
		{"network missing plugin", missing},
		{"network not ready", &network.NotReadyError{Status: network.Status{Message: "no configuration"}}},
		{"network plugin", plugin},
		{"network sysctl", &network.SysctlError{Name: "a", Value: "b", Err: no}},
		{"network sysctl that the kernel refuses", &network.SysctlError{Name: "a", Value: "b", Err: syscall.EINVAL}},
		{"network detach", &network.DetachError{Pod: "p", Record: "/r", Err: missing}},

		{"op abandoned", op.ErrAbandoned},
		{"op superseded", superseded},
		{"op wait, deadline", &op.WaitError{Kind: "creation", Err: context.DeadlineExceeded}},
		{"op wait, canceled", &op.WaitError{Kind: "creation", Err: context.Canceled}},
		{"step", step(no)},
		{"step, not ready", step(&network.NotReadyError{})},
		{"step, sysctl", step(&network.SysctlError{Name: "a", Err: no})},
		{"step, superseded", step(superseded)},
		{"step, superseded after a plugin", ended(plugin, superseded)},
		{"step, abandoned after a deadline", ended(context.DeadlineExceeded, op.ErrAbandoned)},
		{"step, out of time", late(plugin)},
		{"step, out of time without a plugin", late(missing)},
		{"step with an undo that failed", fmt.Errorf("%w; and %w, which is tried again", step(missing), step(plugin))},

		{"pod invalid", invalid},
		{"pod invalid in a step", fmt.Errorf("pod a/b: %w", step(invalid))},
		{"pod internal", fail.New(errdefs.ErrInternal, "read /x: %w", syscall.EIO)},
		{"pod precondition, no room", fail.New(errdefs.ErrFailedPrecondition, "a plugin refuses: %w", no)},
		{"pod not found", fail.New(errdefs.ErrNotFound, "pod %q: not found", "x")},
		{"pod move", &sandbox.MoveError{What: "pod", From: sandbox.Stopped, To: sandbox.Ready}},
		{"image volume", imageVolume(invalid)},
		{"cdi", fail.New(errdefs.ErrInvalidArgument, "container c: %w",
			&cdi.UnknownError{Names: []string{"a/b=c"}, Dirs: []string{"/etc/cdi"}})},
		{"cdi alone", &cdi.UnknownError{Names: []string{"a/b=c"}, Dirs: []string{"/etc/cdi"}}},
		{"limits in use", &limits.UsageError{}},
		{"rootfs unfit", &rootfs.UnfitError{Why: no}},
		{"rootfs mapping", &rootfs.NoIDMapError{Err: no}},
		{"selinux protected", &selinux.ProtectedError{Path: "/etc"}},
	}
	var got strings.Builder
	for _, c := range cases {
		s := status.Convert(fail.Status(c.err))
		text := s.Message()
		if len(text) > 200 {
			text = fmt.Sprintf("%s … (at most 4096 bytes: %v)", text[:60], len(text) <= 4096)
		}
		fmt.Fprintf(&got, "%s | %s | %s\n", c.name, s.Code(), text)
	}
	golden.File(t, "testdata/errors.txt", got.String())
	if fail.Status(nil) != nil {
		t.Error("nil is an error")
	}
}

// imageVolume is what CreateContainer makes of an image that cannot be mounted.
func imageVolume(err error) error { return fail.New(crierrors.ErrImageVolumeMountFailed, "%w", err) }

// imageError is what the store of images makes of an error that ends an operation.
func imageError(kind error, op string, err error) error { return fail.New(kind, "%s: %w", op, err) }

// ended is what a plan says of a step that another operation ends, or nobody waits for, while it fails.
func ended(err, cause error) error {
	ctx, end := context.WithCancelCause(context.Background())
	return op.Plan{Name: "pod", Steps: []op.Step{{Name: "network", Do: func(context.Context) error {
		end(cause)
		return err
	}}}}.Forward(ctx)
}

// late is what a plan says of a step that fails when its time is up.
func late(err error) error {
	fails := func(ctx context.Context) error {
		<-ctx.Done()
		return err
	}
	step := op.Step{Name: "network", Deadline: time.Nanosecond, Do: fails}
	return op.Plan{Name: "pod", Steps: []op.Step{step}}.Forward(context.Background())
}
