package transport

import (
	"errors"
	"io"
)

// packed refuses requests that are compressed: a few bytes can become the size of a message. Envoy compresses none.
type packed struct{}

var errPacked = errors.New("the request is compressed: send it without compression")

// Type implements grpc.Decompressor.
func (packed) Type() string { return "gzip" }

// Do implements grpc.Decompressor.
func (packed) Do(io.Reader) ([]byte, error) { return nil, errPacked }
