package transport

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync"
)

// gunzip unpacks requests in bounds, or refuses to. gRPC's own way stops at the
// size of a message only, which a few bytes can become.
type gunzip struct {
	accept  bool
	most    int
	readers sync.Pool
}

// unpackRatio is how many times its size a request may become: requests are
// names and values, which gzip makes a few times smaller.
const unpackRatio = 16

var errGzip = errors.New("compressed requests are not accepted here (GRPC_ACCEPT_GZIP)")

// Type implements grpc.Decompressor.
func (*gunzip) Type() string { return "gzip" }

// Do implements grpc.Decompressor.
func (g *gunzip) Do(r io.Reader) ([]byte, error) {
	if !g.accept {
		return nil, errGzip
	}
	packed := &counted{r: r}
	z, _ := g.readers.Get().(*gzip.Reader)
	if z == nil {
		z = new(gzip.Reader)
	}
	defer g.readers.Put(z)
	if err := z.Reset(packed); err != nil {
		return nil, err
	}
	most := g.most
	// The output grows with what is unpacked. A size that a request states itself is not believed.
	var out []byte
	piece := make([]byte, 4<<10)
	for {
		n, err := z.Read(piece)
		out = append(out, piece[:n]...)
		// It is looked at after each piece, so that at most one piece too many is unpacked.
		if len(out) > most || len(out) > unpackRatio*packed.n+len(piece) {
			return nil, fmt.Errorf("the request unpacks to more than %d bytes, or %d times its "+
				"size", most, unpackRatio)
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// counted counts what is read.
type counted struct {
	r io.Reader
	n int
}

// Read implements [io.Reader].
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}
