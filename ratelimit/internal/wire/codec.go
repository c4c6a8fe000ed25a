package wire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Message is a message as its bytes, for a handler that reads and writes them itself. It accepts a copy of received
// bytes, and sent ones are gRPC's from then on.
type Message struct{ Bytes []byte }

// Codec reads and writes Messages as they are. Other messages (health, reflection) use the protobuf library.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ ordinary encoding.CodecV2 }

// Name implements encoding.CodecV2.
func (c codec) Name() string { return proto.Name }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Message)
	if !ok {
		return c.ordinary.Unmarshal(data, v)
	}
	m.Bytes = m.Bytes[:0]
	for _, part := range data {
		m.Bytes = append(m.Bytes, part.ReadOnlyData()...)
	}
	return nil
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*Message); ok {
		return mem.BufferSlice{mem.SliceBuffer(m.Bytes)}, nil
	}
	return c.ordinary.Marshal(v)
}
