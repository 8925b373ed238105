package admin

import (
	"encoding/json"

	"google.golang.org/grpc/encoding"
)

const subtype = "json"

func init() { encoding.RegisterCodec(codec{}) }

// codec encodes the messages of this service; those of CRI beside it stay protobuf.
type codec struct{}

func (codec) Name() string                       { return subtype }
func (codec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (codec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }
