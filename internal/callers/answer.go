package callers

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// keptAnswer is an answer whose bytes are counted until gRPC has written them, or has dropped them.
type keptAnswer struct {
	proto.Message
	size int64
	conn *conn
	once sync.Once
}

// count takes the bytes of an answer from the share of its client. What is not of CRI, or so small that gRPC keeps no
// buffer for it, is left as it is.
func count(answers *share, who Address, resp any) (any, error) {
	m, ok := resp.(proto.Message)
	if !ok || who.conn == nil {
		return resp, nil
	}
	size := int64(proto.Size(m))
	if mem.IsBelowBufferPoolingThreshold(int(size)) {
		return resp, nil
	}
	if err := answers.take(who.PID, size); err != nil {
		return nil, err
	}
	if !who.conn.keep(size) {
		answers.give(who.PID, size)
		return resp, nil
	}
	return &keptAnswer{Message: m, size: size, conn: who.conn}, nil
}

func (k *keptAnswer) free() { k.once.Do(func() { k.conn.release(k.size) }) }

// Get returns a buffer of gRPC's own pool, and Put gives one back: then the answer is gone.
func (k *keptAnswer) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put is called when the bytes of the answer are not needed any more.
func (k *keptAnswer) Put(b *[]byte) {
	k.free()
	mem.DefaultBufferPool().Put(b)
}

// countingCodec encodes as the codecs do that it stands for, protobuf for CRI and JSON for Berth's own service, and has
// the end of a counted answer be noticed. A text that is no UTF-8 fails no answer (withValidTexts).
type countingCodec struct{}

// Name is that of the codec of CRI.
func (countingCodec) Name() string { return protocodec.Name }

// Marshal encodes an answer.
func (countingCodec) Marshal(v any) (mem.BufferSlice, error) {
	if k, ok := v.(*keptAnswer); ok {
		buf := k.Get(int(k.size))
		data, err := proto.MarshalOptions{}.MarshalAppend((*buf)[:0], k.Message)
		if err != nil {
			data, err = proto.MarshalOptions{}.MarshalAppend((*buf)[:0], withValidTexts(k.Message))
		}
		if err != nil {
			k.Put(buf)
			return nil, err
		}
		*buf = data
		return mem.BufferSlice{mem.NewBuffer(buf, k)}, nil
	}
	if m, ok := v.(proto.Message); ok {
		codec := encoding.GetCodecV2(protocodec.Name)
		data, err := codec.Marshal(m)
		if err != nil {
			data, err = codec.Marshal(withValidTexts(m))
		}
		return data, err
	}
	own, err := ownCodec()
	if err != nil {
		return nil, err
	}
	data, err := own.Marshal(v)
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

// Unmarshal decodes a request.
func (countingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(proto.Message); ok {
		return encoding.GetCodecV2(protocodec.Name).Unmarshal(data, v)
	}
	own, err := ownCodec()
	if err != nil {
		return err
	}
	return own.Unmarshal(data.Materialize(), v)
}

// ownCodec is that of Berth's own service, which has registered it.
func ownCodec() (encoding.Codec, error) {
	if c := encoding.GetCodec("json"); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no codec for JSON is registered")
}
