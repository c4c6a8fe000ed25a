package wire

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Reader is a message that takes in its own bytes. They are gRPC's again when it returns.
type Reader interface {
	Read(data mem.BufferSlice) error
}

// Writer is a message that gives its own bytes. It is called once, and they are gRPC's from then
// on.
type Writer interface {
	Write() mem.BufferSlice
}

// ServerCodec makes a server read Readers and write Writers in their own form. Other messages (health,
// reflection) use the protobuf library.
func ServerCodec() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)})
}

type codec struct{ ordinary encoding.CodecV2 }

// Name implements encoding.CodecV2.
func (c codec) Name() string { return proto.Name }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(Reader); ok {
		return r.Read(data)
	}
	return c.ordinary.Unmarshal(data, v)
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if w, ok := v.(Writer); ok {
		return w.Write(), nil
	}
	return c.ordinary.Marshal(v)
}

// CopyTo copies data into b, which is grown where it has no room.
func CopyTo(b []byte, data mem.BufferSlice) []byte {
	n := data.Len()
	if cap(b) < n {
		b = make([]byte, n)
	}
	b = b[:n]
	data.CopyTo(b)
	return b
}
