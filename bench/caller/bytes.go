package caller

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// Bytes is a codec of messages that are encoded already: []byte, and *[]byte for answers.
type Bytes struct{}

// Raw has a connection send encoded messages: a caller's cost is the same for every server.
func Raw() grpc.DialOption { return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Bytes{})) }

// Name implements encoding.CodecV2.
func (Bytes) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (Bytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (Bytes) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
