package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http2"
)

// exchange is a call that the handler answers: an http.ResponseWriter, and the body of its request.
type exchange struct {
	of     *connection
	stream *stream
	cancel context.CancelFunc

	// Guarded by of.mu:
	body  bytes.Buffer // received, and not read
	whole int          // bytes of body up to the end of a message; 0: it has none
	last  message
	shut  bool  // nothing more is read
	talk  *Talk // nil: it is none

	// Of the handler's goroutine:
	header http.Header
	begun  bool   // the answer
	wrote  bool   // since the last Flush
	out    []byte // of the answer, before Flush
}

// exchangeKey is the key of an exchange in the context of its request.
type exchangeKey struct{}

// exchangeCost is what an open call costs, in addition to its fields: its goroutines, and what they have.
const exchangeCost = 8 << 10

// handLocked hands a call to the handler.
func (c *connection) handLocked(id uint32, ended bool) {
	r, err := c.in.fields.request()
	if err != nil {
		c.resetLocked(id, http2.ErrCodeProtocol)
		return
	}
	s := &stream{of: c, id: id, since: c.in.at, window: c.out.initial, ended: ended, complete: ended}
	s.shared = true
	x := &exchange{of: c, stream: s, header: http.Header{}}
	s.exchange = x
	c.calls.open[id] = s
	if !ended {
		c.calls.incomplete++
	}
	c.addLocked(s, int64(c.in.fields.size)+exchangeCost)
	r.URL, r.Body, r.RemoteAddr, r.TLS = &url.URL{Path: r.RequestURI}, x, c.RemoteAddr().String(), c.security
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), exchangeKey{}, x))
	x.cancel = cancel
	c.running.Go(func() {
		defer cancel()
		c.Others.ServeHTTP(x, r.WithContext(ctx))
		x.finish()
	})
}

// dataLocked takes in a piece of the request. Its bytes are held until the call ends, or its Talk has received them:
// grpc-go reads all that there is, whatever its handler takes.
func (x *exchange) dataLocked(piece []byte) {
	x.of.addLocked(x.stream, int64(len(piece)))
	x.body.Write(piece)
	if tail, ends := x.last.through(piece, x.of.Caps.MessageBytes); ends {
		x.whole = x.body.Len() - tail
	}
	if x.stream.ended {
		x.of.completesLocked(x.stream)
	}
	x.of.out.room.Broadcast()
}

// Read implements io.Reader for the request. It fills p, or ends with a message: grpc-go keeps p, of 16 KiB, for
// whatever a read brings. So that is what a read costs, until the call ends, or its Talk has received it.
func (x *exchange) Read(p []byte) (int, error) {
	c, s := x.of, x.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	for x.whole == 0 && x.body.Len() < len(p) && !s.ended && !s.gone && !x.shut {
		c.out.room.Wait()
	}
	if x.whole > 0 {
		p = p[:min(len(p), x.whole)]
	}
	n, _ := x.body.Read(p)
	x.whole = max(0, x.whole-n)
	if x.body.Len() == 0 && x.body.Cap() > 4*mostFrame {
		x.body = bytes.Buffer{} // it keeps no room of a large message
	}
	switch {
	case n > 0:
		if !s.gone {
			c.addLocked(s, max(0, mostFrame-int64(n)))
		}
		return n, nil
	case s.gone && !s.ended:
		return 0, context.Canceled
	}
	return 0, io.EOF
}

// Close implements io.Closer.
func (x *exchange) Close() error {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.shut = true
	x.of.out.room.Broadcast()
	return nil
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(code int) {
	if x.begun {
		return
	}
	x.begun = true
	block := appendStatus(code)
	for name, values := range x.header {
		if name == "Trailer" || x.isTrailer(name) {
			continue
		}
		for _, v := range values {
			block = appendField(block, strings.ToLower(name), v)
		}
	}
	x.say(func(c *connection) { c.headersLocked(0, x.stream.id, block) })
}

func (x *exchange) isTrailer(name string) bool {
	for _, t := range x.header["Trailer"] {
		if strings.EqualFold(t, name) {
			return true
		}
	}
	return strings.HasPrefix(name, http.TrailerPrefix)
}

// say says something about the call, unless it has ended.
func (x *exchange) say(f func(*connection)) {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if !x.stream.gone {
		f(x.of)
	}
}

// Write implements http.ResponseWriter. It waits for the caller when there is a frame.
func (x *exchange) Write(p []byte) (int, error) {
	x.WriteHeader(http.StatusOK)
	x.out, x.wrote = append(x.out, p...), true
	if len(x.out) >= mostFrame && !x.send() {
		return 0, context.Canceled
	}
	return len(p), nil
}

// send says the data of the answer, and waits for the windows. It is false if the call has ended.
func (x *exchange) send() bool {
	c := x.of
	for sent := 0; sent < len(x.out); {
		c.mu.Lock()
		for !x.stream.gone && min(c.out.window, x.stream.window) <= 0 {
			c.out.room.Wait()
		}
		gone := x.stream.gone
		if !gone {
			sent += c.sendLocked(x.stream, x.out[sent:])
			c.idle.earn(framesAnAnswer)
		}
		c.mu.Unlock()
		if gone {
			return false
		}
		c.flush()
	}
	x.out = x.out[:0]
	return true
}

// Flush implements http.Flusher.
func (x *exchange) Flush() {
	x.WriteHeader(http.StatusOK)
	if x.wrote && x.send() {
		x.say(x.askLocked)
	}
	x.wrote = false
	x.of.flush()
}

// finish ends the answer.
func (x *exchange) finish() {
	x.Flush()
	var trailers []byte
	for name, values := range x.header {
		if name == "Trailer" || !x.isTrailer(name) {
			continue
		}
		for _, v := range values {
			trailers = appendField(trailers, strings.ToLower(strings.TrimPrefix(name, http.TrailerPrefix)), v)
		}
	}
	x.say(func(c *connection) {
		if len(trailers) > 0 {
			c.headersLocked(flagEndStream, x.stream.id, trailers)
		} else {
			c.sayLocked(frameData, flagEndStream, x.stream.id, nil)
		}
		if !x.stream.ended {
			c.resetLocked(x.stream.id, http2.ErrCodeNo)
		}
		c.answeredLocked(x.stream)
	})
	x.of.flush()
}

// message follows the messages of a request: each has a byte of flags and four of its length before it.
type message struct {
	prefix [messagePrefix]byte
	have   int
	left   int
}

// through takes in a piece. It tells whether a message ended in it, and how many bytes came behind that. One of more
// than most bytes ends with its prefix, which is all that gRPC reads of it.
func (m *message) through(b []byte, most int) (tail int, ended bool) {
	for len(b) > 0 {
		if m.have < messagePrefix {
			n := copy(m.prefix[m.have:], b)
			m.have += n
			tail += n
			if b = b[n:]; m.have < messagePrefix {
				return tail, ended
			}
			if m.left = int(binary.BigEndian.Uint32(m.prefix[1:])); m.left > most {
				m.left = 0
			}
		}
		n := min(m.left, len(b))
		m.left -= n
		tail += n
		if b = b[n:]; m.left == 0 {
			m.have, tail, ended = 0, 0, true
		}
	}
	return tail, ended
}
