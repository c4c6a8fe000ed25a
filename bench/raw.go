package bench

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/sluice-gate/sluice/bench/caller"
)

// raw has connections send prepared bytes, and leave answers unread: a caller's cost is the same for every server.
func raw() grpc.DialOption { return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})) }

// rawCodec sends messages as the bytes that they are, and of answers it keeps the length.
type rawCodec struct{ caller.Bytes }

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*int) = data.Len()
	return nil
}
