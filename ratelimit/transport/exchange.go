package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"golang.org/x/net/http2"
)

// exchange is a call that the handler answers: an http.ResponseWriter, and the body of its request.
type exchange struct {
	of     *connection
	stream *stream
	cancel context.CancelFunc

	news *sync.Cond // of of.mu: there may be something to be read, or a window. Its own, so that none wakes all.

	// Guarded by of.mu:
	body  bytes.Buffer // received, and not read
	left  int64        // bytes of the message that is being read
	ahead bool         // a message was read, at least in part, that the Talk has not received
	shut  bool         // nothing more is read
	over  bool         // the handler has answered
	talk  *Talk        // nil: it is none

	// Of the handler's goroutine:
	header http.Header
	begun  bool   // the answer
	wrote  bool   // since the last Flush
	out    []byte // of the answer, before Flush
}

// exchangeKey is the key of an exchange in the context of its request.
type exchangeKey struct{}

// exchangeCost is what an open call costs, in addition to its fields: its goroutines, and what they have.
const exchangeCost = 32 << 10

// handLocked hands a call to the handler.
func (c *connection) handLocked(id uint32, ended bool) {
	r, err := c.in.fields.request()
	if err != nil {
		c.resetLocked(id, http2.ErrCodeProtocol)
		return
	}
	s := &stream{of: c, id: id, since: c.in.at, window: c.out.initial, ended: ended, complete: ended}
	s.shared = true
	x := &exchange{of: c, stream: s, header: http.Header{}, news: sync.NewCond(&c.mu)}
	s.exchange = x
	c.calls.open[id] = s
	c.calls.handlers++
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
	if x.stream.ended {
		x.of.completesLocked(x.stream)
	}
	x.news.Broadcast()
}

// Read implements io.Reader for the request.
func (x *exchange) Read(p []byte) (int, error) {
	c := x.of
	c.mu.Lock()
	defer c.mu.Unlock()
	for x.readyLocked() == 0 && (!x.stream.ended || x.body.Len() > 0) && !x.stream.gone && !x.shut {
		x.news.Wait()
	}
	n, _ := x.body.Read(p[:min(len(p), x.readyLocked())])
	x.left -= int64(n)
	if x.body.Len() == 0 && x.body.Cap() > 4*mostFrame {
		x.body = bytes.Buffer{} // it keeps no room of a large message
	}
	if n > 0 && !x.stream.gone {
		c.addLocked(x.stream, readCost)
	}
	switch {
	case n > 0 || len(p) == 0:
		return n, nil
	case x.stream.gone && !x.stream.ended:
		return 0, context.Canceled
	}
	return 0, io.EOF
}

// readCost is what grpc-go keeps for a read, however little that brings, until its handler takes it.
const readCost = mostFrame

// readyLocked is how many bytes may be read: of one message, and of a Talk's next one when it has received the last.
func (x *exchange) readyLocked() int {
	switch {
	case x.left > 0:
	case x.ahead && x.talk != nil:
		return 0
	case x.body.Len() >= messagePrefix:
		x.left, x.ahead = messagePrefix+int64(binary.BigEndian.Uint32(x.body.Bytes()[1:])), true
	case x.stream.ended: // it is cut off
		x.left = int64(x.body.Len())
	}
	return int(min(x.left, int64(x.body.Len())))
}

// Close implements io.Closer.
func (x *exchange) Close() error {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.shut = true
	x.news.Broadcast()
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
	begun := nanotime()
	for sent := 0; sent < len(x.out); {
		c.mu.Lock()
		for !x.stream.gone && min(c.out.window, x.stream.window) <= 0 {
			c.waitsLocked(x.stream, begun)
			c.out.senders++
			x.news.Wait()
			c.out.senders--
		}
		if x.stream.ended || x.talk != nil {
			c.completesLocked(x.stream)
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
			c.writeFrameLocked(frameData, flagEndStream, x.stream.id, nil)
		}
		if !x.stream.ended {
			c.resetLocked(x.stream.id, http2.ErrCodeNo)
		}
		c.calls.handlers--
		x.over = true
		c.answeredLocked(x.stream)
	})
	x.leave()
	x.of.flush()
}

// leave gives back what a handler held whose call was reset.
func (x *exchange) leave() {
	c := x.of
	c.mu.Lock()
	if !x.over {
		c.calls.handlers--
	}
	if !c.life.over {
		c.addLocked(x.stream, -x.stream.cost)
	}
	change := c.memory.book()
	c.mu.Unlock()
	c.Budget.charge(change)
}
