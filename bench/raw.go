package bench

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// raw has connections send prepared bytes, and leave answers unread: a caller's cost is the same for every server.
func raw() grpc.DialOption { return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})) }

// rawCodec passes messages as the bytes they are.
type rawCodec struct{}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*int) = data.Len()
	return nil
}
