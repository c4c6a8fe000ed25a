package xds

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// shape says which fields of a message are messages. Two bytes of a push can be
// an empty message, and become a hundred times as much memory: they are counted
// in the bytes, before any is built.
type shape map[protowire.Number]shape

var (
	// responseShape is that of a DiscoveryResponse, whose resources stay bytes.
	responseShape = shape{2: {}, 6: {}, 7: {2: {3: {}}}}
	configShape   = shape{3: nil} // of a RateLimitConfig
)

func init() { // descriptors hold descriptors, and values values
	value, list, object := shape{}, shape{}, shape{}
	object[1] = shape{2: value}
	list[1] = value
	value[5], value[6] = object, list
	descriptor := shape{3: {5: {}}, metadataField: object}
	descriptor[4] = descriptor
	configShape[3] = descriptor
}

// count takes a message and those in it off left. It reads the bytes once for
// each level, and allocates nothing.
func (s shape) count(b []byte, left *int, depth int) error {
	*left--
	if *left < 0 {
		return errMany
	}
	// Each level is a call of this function, and a level costs a caller two bytes.
	if depth > maxMessageDepth {
		return fmt.Errorf("messages are nested more than %d deep", maxMessageDepth)
	}
	return wire.Each(b, "message", fmt.Errorf, func(f wire.Field) error {
		// Fields that are not messages cost no more in memory than their bytes.
		if below, known := s[f.Number]; known && f.Type == protowire.BytesType {
			return below.count(f.Body, left, depth+1)
		}
		return nil
	})
}

// maxMessageDepth is beyond the 99 descriptors in one another that rules may have
// (package config), with metadata in the last: a level of JSON is three messages.
const maxMessageDepth = 208

// errMany marks a push that is well formed and too large, so that the text can name the maximum.
var errMany = fmt.Errorf("it holds too many messages")

// codec reads pushes, but none with more resources than there may be files.
type codec struct {
	encoding.CodecV2
	// most is the largest number of messages of a response: its resources, and 100 for their envelope.
	most   int
	refuse func(error)
}

// refuse is called for a push that is not built, from the goroutine that receives.
func newCodec(b config.Caps, refuse func(error)) codec {
	// A response has a few messages in addition to its resources; 100 are more than any server sends.
	return codec{encoding.GetCodecV2(grpcproto.Name), b.Files + 100, refuse}
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	bytes := data.Materialize()
	left := c.most
	// gRPC would build the message before anybody else can look at it, so that it is counted here.
	if err := responseShape.count(bytes, &left, 0); err != nil {
		err = fmt.Errorf("a push of %d bytes: %w: the maximum of resources is %d", len(bytes), err,
			c.most-100)
		c.refuse(err)
		return err
	}
	return c.CodecV2.Unmarshal(data, v)
}
