package cri

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"berth/internal/fail"
	"berth/internal/limit"
)

// Sizes bound what a request of CRI may be made of. What it asks for is kept long after the request, in records and in
// the answers about it. 0 is no limit.
type Sizes struct {
	Bytes   int64 // of the whole
	Entries int64 // of each list and map
	Labels  int64 // bytes of each map
}

// Interceptors refuse requests of CRI that are larger than sizes allows, or that have values of enums that CRI does not
// define. Messages that are no protobuf pass.
func Interceptors(sizes func() Sizes) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	check := func(msg any) error {
		m, ok := msg.(proto.Message)
		if !ok {
			return nil
		}
		return sizes().check(m)
	}
	unary := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := check(req); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
	stream := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return next(srv, checkedStream{ss, check})
	}
	return unary, stream
}

// checkedStream checks each message that a client sends.
type checkedStream struct {
	grpc.ServerStream
	check func(msg any) error
}

// RecvMsg receives the next message.
func (s checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.check(m)
}

func (s Sizes) check(m proto.Message) error {
	if err := limit.RequestBytes.At(s.Bytes).Check(int64(proto.Size(m))); err != nil {
		return err
	}
	return s.message("", m.ProtoReflect())
}

// message checks the fields of a message, each by its own name and those around it.
func (s Sizes) message(within string, m protoreflect.Message) (err error) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		err = s.field(within+string(f.Name()), f, v)
		return err == nil
	})
	return err
}

func (s Sizes) field(name string, f protoreflect.FieldDescriptor, v protoreflect.Value) (err error) {
	switch {
	case f.IsMap():
		if err := s.entries(name, v.Map().Len()); err != nil {
			return err
		}
		return s.pairs(name, f, v.Map())
	case f.IsList():
		if err := s.entries(name, v.List().Len()); err != nil {
			return err
		}
		for i := range v.List().Len() {
			if err := s.single(name, f, v.List().Get(i)); err != nil {
				return err
			}
		}
		return nil
	}
	return s.single(name, f, v)
}

func (s Sizes) entries(name string, n int) error {
	if err := limit.RequestEntries.At(s.Entries).Check(int64(n)); err != nil {
		return fail.About(fail.Detail{}, "%s: %w", name, err)
	}
	return nil
}

// pairs checks a map: its texts together, whatever each has, and messages in it one by one.
func (s Sizes) pairs(name string, f protoreflect.FieldDescriptor, m protoreflect.Map) (err error) {
	bytes := int64(0)
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		bytes += int64(len(k.String()))
		switch f.MapValue().Kind() {
		case protoreflect.MessageKind:
			err = s.message(name+".", v.Message())
		case protoreflect.StringKind:
			bytes += int64(len(v.String()))
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	if err := limit.RequestLabels.At(s.Labels).Check(bytes); err != nil {
		return fail.About(fail.Detail{}, "%s: %w", name, err)
	}
	return nil
}

// single checks a value that is neither a list nor a map.
func (s Sizes) single(name string, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return s.message(name+".", v.Message())
	case protoreflect.StringKind:
		return text(name, f, v.String())
	case protoreflect.EnumKind:
		return known(name, f, v.Enum())
	}
	return nil
}

// known refuses a value of an enum that CRI does not define: whoever sends it asks for something that would not be
// done. A filter may have one, of a later CRI: nothing here is like that, and its list is empty.
func known(name string, f protoreflect.FieldDescriptor, v protoreflect.EnumNumber) error {
	if f.Enum().Values().ByNumber(v) == nil && !strings.HasPrefix(name, "filter.") {
		return fail.New(errdefs.ErrInvalidArgument, "%s: %d is no value that CRI defines", name, v)
	}
	return nil
}

// text refuses a path, name or other word that is longer than any path can be.
func text(name string, f protoreflect.FieldDescriptor, v string) error {
	most := limit.RequestText
	switch f.FullName().Parent().Name() {
	case "KeyValue":
		return nil // a variable: all that a process gets are bounded together
	case "AuthConfig":
		most = limit.RequestCredential
	}
	switch last := name[strings.LastIndexByte(name, '.')+1:]; last {
	case "command", "args", "cmd":
		return nil // as variables are
	}
	if err := most.Check(int64(len(v))); err != nil {
		return fail.New(errdefs.ErrInvalidArgument, "%s: %w", name, err)
	}
	return nil
}
