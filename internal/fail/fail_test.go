package fail

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/test/golden"
)

// TestKinds holds the table of kinds: what a gRPC client, a kubelet, a shell and a metric are told of each.
func TestKinds(t *testing.T) {
	var got strings.Builder
	for _, k := range kinds {
		err := fmt.Errorf("pull x: %w", New(k.Err, "no"))
		s := status.Convert(Status(err))
		fmt.Fprintf(&got, "%s | %s | exit %d | %s\n", KindOf(err).Name, s.Code(), KindOf(err).Exit, s.Message())
		if back := KindOf(s.Err()); back.Name != k.Name {
			t.Errorf("%s: its status is of the kind %s", k.Name, back.Name)
		}
		if !errors.Is(err, k.Err) || !Is(err, k.Err) {
			t.Errorf("%s: the kind is lost", k.Name)
		}
	}
	golden.File(t, "testdata/kinds.txt", got.String())
}

// TestOutermostKind shows which of several kinds decides.
func TestOutermostKind(t *testing.T) {
	no := errors.New("no")
	inner := New(errdefs.ErrNotFound, "pod: %w", syscall.ENOSPC)
	foreign := status.Error(codes.OutOfRange, "of somebody else")
	for _, c := range []struct {
		name string
		err  error
		kind string
		code codes.Code
	}{
		{"none", no, "Unknown", codes.Unknown},
		{"the outer", New(errdefs.ErrFailedPrecondition, "%w", inner), "FailedPrecondition", codes.FailedPrecondition},
		{"below text", fmt.Errorf("a: %w", inner), "NotFound", codes.NotFound},
		{"the first", errors.Join(no, inner, errdefs.ErrInternal), "NotFound", codes.NotFound},
		{"a code that is left", New(crierrors.ErrImageVolumeMountFailed, "%w", inner), "ImageVolumeMountFailed",
			codes.NotFound},
		{"a code that is left, below a kind", New(errdefs.ErrInvalidArgument, "container: %w",
			New(crierrors.ErrImageVolumeMountFailed, "%w", inner)), "ImageVolumeMountFailed", codes.InvalidArgument},
		{"a code that nobody has", New(crierrors.ErrImageVolumeMountFailed, "x"), "ImageVolumeMountFailed", codes.Unknown},
		{"a status below", fmt.Errorf("plugin: %w", foreign), "OutOfRange", codes.OutOfRange},
		{"a status below a kind", New(errdefs.ErrFailedPrecondition, "%w", foreign), "FailedPrecondition",
			codes.FailedPrecondition},
		{"details alone", About(Detail{Pod: "a/b"}, "pod: %w", inner), "NotFound", codes.NotFound},
		{"by a method", fmt.Errorf("x: %w", timeout{}), "DeadlineExceeded", codes.DeadlineExceeded},
	} {
		if got := KindOf(c.err).Name; got != c.kind {
			t.Errorf("%s: kind %s, want %s", c.name, got, c.kind)
		}
		if got := status.Code(Status(c.err)); got != c.code {
			t.Errorf("%s: code %s, want %s", c.name, got, c.code)
		}
	}
	if Status(nil) != nil || Is(nil, errdefs.ErrUnknown) {
		t.Error("nil is an error")
	}
}

// timeout says by a method of which kind it is, as those of package net do.
type timeout struct{}

func (timeout) Error() string        { return "timeout" }
func (timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// TestDetails shows that each detail comes from the outermost error that knows it, and reaches a client.
func TestDetails(t *testing.T) {
	low := &Error{Kind: errdefs.ErrResourceExhausted, Err: errors.New("layer: 12 bytes, at most 10"),
		Detail: Detail{Pod: "inner", Step: "pull: unpack", Limit: "layer", Key: "images.max_layer_bytes", Remedy: "raise it"}}
	err := About(Detail{Pod: "a/b", Container: "c"}, "pod a/b: create: %w", low)
	want := Detail{Pod: "a/b", Container: "c", Step: "pull: unpack", Limit: "layer", Key: "images.max_layer_bytes",
		Remedy: "raise it"}
	if got := Details(err); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	const text = "pod a/b: create: layer: 12 bytes, at most 10: raise it"
	if err.Error() != text {
		t.Errorf("%q", err)
	}
	s := status.Convert(Status(err))
	if s.Message() != text || s.Code() != codes.ResourceExhausted || KindOf(s.Err()).Exit != ExitNoRoom {
		t.Errorf("%v", s)
	}
	if got := Details(s.Err()); got != want {
		t.Errorf("over gRPC: %+v, want %+v", got, want)
	}
}

// TestTextIsBounded gives a client text that gRPC can carry, whatever an image or a program brought.
func TestTextIsBounded(t *testing.T) {
	long := New(errdefs.ErrDataLoss, "begin %s end \xff", strings.Repeat("ü", 1<<20))
	text := status.Convert(Status(long)).Message()
	if len(text) > maxText || !strings.HasPrefix(text, "begin ") || !strings.HasSuffix(text, " end ?") {
		t.Errorf("%d bytes: %.40q … %q", len(text), text, text[len(text)-10:])
	}
}

// TestRemedyOfTheKernelsWords shows that an error without a remedy gets that of what the kernel said, whatever kind
// decides, and that one which has its own keeps that alone.
func TestRemedyOfTheKernelsWords(t *testing.T) {
	deep := New(errdefs.ErrUnavailable, "pull: %w", fmt.Errorf("dial: %w", syscall.EMFILE))
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"none":            {fmt.Errorf("open: %w", syscall.EMFILE), "LimitNOFILE"},
		"below a kind":    {deep, "LimitNOFILE"},
		"its own":         {About(Detail{Remedy: "do this"}, "%w", deep), "do this"},
		"none to be told": {errors.New("no"), ""},
	} {
		s := status.Convert(Status(c.err))
		told := detailOf(s).Remedy
		if !strings.Contains(s.Message(), c.says) || !strings.Contains(told, c.says) || c.says == "" && told != "" {
			t.Errorf("%s: %q, with the remedy %q", name, s.Message(), told)
		}
		if n := strings.Count(s.Message(), ": the") + strings.Count(s.Message(), "LimitNOFILE"); n > 1 {
			t.Errorf("%s: it has two remedies: %s", name, s.Message())
		}
		again := status.Convert(Status(fmt.Errorf("berth: %w", s.Err())))
		if strings.Count(again.Message(), "LimitNOFILE") > 1 {
			t.Errorf("%s: it is told twice: %s", name, again.Message())
		}
	}
}

// TestLacking tells what a machine lacks from what is wrong with what was worked on.
func TestLacking(t *testing.T) {
	for text, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                    {nil, false},
		"descriptors":                {fmt.Errorf("open: %w", syscall.EMFILE), true},
		"space, called damage":       {New(errdefs.ErrDataLoss, "layer: %w", syscall.ENOSPC), true},
		"space, with what to do":     {New(errdefs.ErrResourceExhausted, "remove images: %w", syscall.EDQUOT), true},
		"a limit of the daemon":      {New(errdefs.ErrResourceExhausted, "too many entries"), false},
		"a file that is not there":   {fmt.Errorf("open: %w", syscall.ENOENT), false},
		"a file system of no writes": {fmt.Errorf("open: %w", syscall.EROFS), false},
	} {
		if got := Lacking(c.err); got != c.want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
