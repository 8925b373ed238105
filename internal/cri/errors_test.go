package cri

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/image"
	"berth/internal/network"
	"berth/internal/op"
	"berth/internal/pod"
)

func TestCodes(t *testing.T) {
	cases := []struct {
		err  error
		want codes.Code
	}{
		{fmt.Errorf("pod: %w", errdefs.ErrNotFound), codes.NotFound},
		{fmt.Errorf("pod: %w: %w", errors.New("bad sysctl"), errdefs.ErrInvalidArgument), codes.InvalidArgument},
		{&pod.MoveError{What: "pod", From: pod.Stopped, To: pod.Ready}, codes.FailedPrecondition},
		{&op.WaitError{Kind: "creation", Err: context.DeadlineExceeded}, codes.DeadlineExceeded},
		{&op.WaitError{Kind: "creation", Err: context.Canceled}, codes.Canceled},
		{fmt.Errorf("pod: %w", &op.StepError{Plan: "pod", Step: "network", Err: &op.SupersededError{By: "stop"}}), codes.Aborted},
		{fmt.Errorf("pod: %w", op.ErrAbandoned), codes.Aborted},
		{&op.StepError{Plan: "pod", Step: "network", Err: &network.NotReadyError{}}, codes.Unavailable},
		{&op.StepError{Plan: "pod", Step: "network", Err: &network.MissingPluginError{Plugin: "bridge"}}, codes.Unavailable},
		{&op.StepError{Plan: "pod", Step: "namespaces", Err: &network.SysctlError{Name: "a", Err: errors.New("no")}}, codes.InvalidArgument},
		{&network.CIDRError{Value: "x", Err: errors.New("no")}, codes.InvalidArgument},
		{fmt.Errorf("write record: %w", syscall.ENOSPC), codes.ResourceExhausted},
		{&image.Error{Kind: image.DataLoss, Op: "pull", Err: errors.New("digest")}, codes.DataLoss},
		{&image.Error{Kind: image.Unavailable, Op: "pull", Err: context.DeadlineExceeded}, codes.Unknown},
		{&image.Error{Kind: image.Refused, Op: "pull", Err: errors.New("no")}, codes.Unknown},
		{pod.Fail(errdefs.ErrInvalidArgument, "mount: %w", syscall.ENOENT), codes.InvalidArgument},
		{pod.Fail(errdefs.ErrInternal, "read /x: %w", syscall.EIO), codes.Internal},
		{errors.New("something else"), codes.Unknown},
		{status.Error(codes.OutOfRange, "as it is"), codes.OutOfRange},
	}
	for _, c := range cases {
		got := ToStatus(c.err)
		if status.Code(got) != c.want {
			t.Errorf("%v: %v, want %v", c.err, status.Code(got), c.want)
		}
		if c.want != codes.OutOfRange && status.Convert(got).Message() != c.err.Error() {
			t.Errorf("the text was lost: %q", status.Convert(got).Message())
		}
	}
	if ToStatus(nil) != nil {
		t.Error("nil is an error")
	}
}

func TestEveryImageKindHasACode(t *testing.T) {
	for k := image.InvalidArgument; k <= image.Refused; k++ {
		if imageCodes[k] == codes.OK {
			t.Errorf("kind %d has no code", k)
		}
	}
}
