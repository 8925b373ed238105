package nri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// messageRoom is how many bytes of pods and containers go into one message of ttRPC: what it takes at most, less room
// for the names of the service and the method, and for the timeout.
var messageRoom = (*ttrpc.OversizedMessageErr)(nil).MaximumLength() - 64<<10

// entryHead is how many bytes a message takes at most for one entry, beside the entry itself: its tag and its length.
const entryHead = 6

// recovered is show with a panic turned into an error, which refuses the plugin: the adaptation's code for messages
// that are too large has panicked (v0.12.5), and a plugin must not end the daemon or keep it from starting.
func recovered(show adaptation.SyncCB) adaptation.SyncCB {
	return func(
		ctx context.Context, pods []*api.PodSandbox, containers []*api.Container,
	) (updates []*api.ContainerUpdate, err error) {
		defer func() {
			if r := recover(); r != nil {
				updates, err = nil, fmt.Errorf("show a plugin %d pods and %d containers: the NRI library panicked: %v",
					len(pods), len(containers), r)
			}
		}()
		return show(ctx, pods, containers)
	}
}

// sendable is all without the entries that fit into no message. A plugin that joins is not told of those; without this
// no plugin could join while one is there. skipped is told their ids.
func sendable[T interface {
	proto.Message
	GetId() string
}](all []T, skipped func(id string, size int)) (fit []T) {
	for _, one := range all {
		if n := proto.Size(one) + entryHead; n > messageRoom {
			skipped(one.GetId(), n)
			continue
		}
		fit = append(fit, one)
	}
	return fit
}

// sendSplit sends a Synchronize request, in several messages where one is too large. The adaptation splits by the
// number of entries, not by their size, and with few large ones among them it panics, gives up or never ends.
func sendSplit(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, send ttrpc.Invoker) error {
	if len(req.Payload) <= messageRoom {
		return send(ctx, req, resp)
	}
	parts, more, err := cut(req.Payload)
	if err != nil {
		return fmt.Errorf("split what a plugin is shown: %w", err)
	}
	for i, part := range parts {
		last := i == len(parts)-1
		payload := part
		if !last || more {
			payload = withMore(part)
		}
		message := &ttrpc.Request{
			Service: req.Service, Method: req.Method, Metadata: req.Metadata, Payload: payload, TimeoutNano: req.TimeoutNano,
		}
		if deadline, ok := ctx.Deadline(); ok {
			message.TimeoutNano = int64(time.Until(deadline))
		}
		if last {
			return send(ctx, message, resp)
		}
		if err := sendPart(ctx, message, resp, send); err != nil || resp.GetStatus().GetCode() != int32(codes.OK) {
			return err
		}
		resp.Reset()
	}
	return nil
}

// sendPart sends a message that others follow. Where the plugin refuses it, resp says why.
func sendPart(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, send ttrpc.Invoker) error {
	if err := send(ctx, req, resp); err != nil || resp.GetStatus().GetCode() != int32(codes.OK) {
		return err
	}
	answer := &api.SynchronizeResponse{}
	if err := proto.Unmarshal(resp.Payload, answer); err != nil {
		return fmt.Errorf("the plugin's answer to a part of what it is shown: %w", err)
	}
	if !answer.More || len(answer.Update) > 0 {
		return errors.New("the pods and containers fit into no single message, and the plugin takes no more than one: " +
			"use a version of it that handles split requests (Synchronize with more)")
	}
	return nil
}

// moreField is the number of SynchronizeRequest.more, which says that another request follows.
const moreField = 3

// cut cuts an encoded request into parts that fit into a message each, at its fields. It decodes nothing and copies
// nothing: a node's containers may be a hundred megabytes. more is what the request says of it, and is in no part.
func cut(payload []byte) (parts [][]byte, more bool, err error) {
	begin, at := 0, 0 // of a part, and up to where it is known to fit
	end := func() {
		if at > begin {
			parts = append(parts, payload[begin:at])
		}
		begin = at
	}
	for at < len(payload) {
		number, kind, n := protowire.ConsumeField(payload[at:])
		if n < 0 {
			return nil, false, protowire.ParseError(n)
		}
		if number == moreField && kind == protowire.VarintType {
			end()
			value, _ := protowire.ConsumeVarint(payload[at+protowire.SizeTag(number):])
			more = protowire.DecodeBool(value)
			begin = at + n
		} else if at+n-begin > messageRoom {
			end()
		}
		at += n
	}
	end()
	return parts, more, nil
}

// withMore is a copy of a part that says that another follows.
func withMore(part []byte) []byte {
	out := append(make([]byte, 0, len(part)+2), part...)
	return protowire.AppendVarint(protowire.AppendTag(out, moreField, protowire.VarintType), 1)
}
