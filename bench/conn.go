package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"sync"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// state is what has become of a call.
type state uint8

const (
	free    state = iota
	waiting       // sent, and neither answered nor given up
	decided       // in time; its stream has not ended yet
)

// call is a stream that the caller still has.
type call struct {
	id       uint32
	state    state
	intended time.Time
}

// callSlots is more than the calls that a connection can have begun within a
// caller's patience.
const callSlots = 1 << 16

// conn is one HTTP/2 connection with RLS calls on it. It writes and reads frames
// itself: a gRPC client would need more processor time for a call than the server
// that is to be overloaded.
type conn struct {
	tcp   net.Conn
	in    *bufio.Reader
	head  []byte        // the header block of all calls but the first
	more  chan struct{} // a call has ended
	ended chan struct{}

	mu          sync.Mutex
	err         error         // guarded by mu, as all below: why it reads no more
	next        uint32        // the id of the next stream
	oldest      uint32        // no older stream waits
	calls       []call        // by id
	outstanding int           //
	most        int           // outstanding calls, by our own bound and the server's
	window      int64         // bytes that may be sent
	out         bytes.Buffer  // frames to be written
	frames      *http2.Framer // into out
	tally       *outcomes

	writing sync.Mutex // held while frames are written
}

// dial connects, and waits for the server's settings.
func dial(address string) (*conn, error) {
	tcp, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", address, err)
	}
	c := &conn{
		tcp: tcp, in: bufio.NewReaderSize(tcp, 256<<10),
		more: make(chan struct{}, 1), ended: make(chan struct{}),
		next: 1, oldest: 1, calls: make([]call, callSlots), most: outstanding / floodConns, window: 65535, tally: newOutcomes(),
	}
	c.frames = http2.NewFramer(&c.out, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.greetLocked(address); err != nil {
		tcp.Close()
		return nil, fmt.Errorf("greeting %s: %w", address, err)
	}
	go c.read()
	return c, nil
}

// greetLocked exchanges settings, and makes the first call: it names all fields, and every later one refers to them, as
// all clients' do.
func (c *conn) greetLocked(address string) error {
	c.out.WriteString(http2.ClientPreface)
	// Writes into a buffer do not fail.
	_ = c.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	_ = c.frames.WriteWindowUpdate(0, 1<<30)
	if err := c.flushLocked(); err != nil {
		return err
	}
	_ = c.tcp.SetReadDeadline(time.Now().Add(5 * time.Second))
	f, err := http2.NewFramer(nil, c.in).ReadFrame()
	if err != nil {
		return err
	}
	_ = c.tcp.SetReadDeadline(time.Time{})
	c.handleLocked(f) // a server's first frame has its settings
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	headers := func() []byte {
		block.Reset()
		for _, f := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", rls.RateLimitService_ShouldRateLimit_FullMethodName},
			{":authority", address},
			{"te", "trailers"},
			{"content-type", "application/grpc"},
			{"grpc-timeout", fmt.Sprintf("%dm", impatience.Milliseconds())},
			{"user-agent", "sluice-bench"},
		} {
			_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		return bytes.Clone(block.Bytes())
	}
	c.head = headers()
	c.beginLocked(framed("warm-up"), time.Now())
	c.head = headers()
	c.tally = newOutcomes()
	return c.flushLocked()
}

func (c *conn) close() {
	c.tcp.Close()
	<-c.ended
}

// beginLocked adds a call to the pending writes, if it may be sent now.
func (c *conn) beginLocked(message []byte, intended time.Time) bool {
	if c.outstanding >= c.most || c.window < int64(len(message)) {
		return false
	}
	id := c.next
	c.next += 2
	_ = c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.head, EndHeaders: true})
	_ = c.frames.WriteData(id, true, message)
	c.window -= int64(len(message))
	c.calls[id/2%callSlots] = call{id: id, state: waiting, intended: intended}
	c.outstanding++
	c.tally.sent++
	return true
}

// giveUpLocked cancels the calls whose callers wait no longer.
func (c *conn) giveUpLocked(now time.Time) {
	for ; c.oldest < c.next; c.oldest += 2 {
		w := &c.calls[c.oldest/2%callSlots]
		if w.id != c.oldest || w.state != waiting {
			continue
		}
		if now.Sub(w.intended) <= impatience {
			return
		}
		w.state = free
		c.outstanding--
		c.tally.givenUp++
		_ = c.frames.WriteRSTStream(w.id, http2.ErrCodeCancel)
	}
}

// flushLocked writes the pending frames; meanwhile mu is not held.
func (c *conn) flushLocked() error {
	out := bytes.Clone(c.out.Bytes())
	c.out.Reset()
	c.mu.Unlock()
	defer c.mu.Lock()
	if len(out) == 0 {
		return nil
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := c.tcp.Write(out)
	return err
}

// read handles what the server says until the connection ends.
func (c *conn) read() {
	defer close(c.ended)
	frames := http2.NewFramer(nil, c.in)
	frames.SetReuseFrames()
	for {
		f, err := frames.ReadFrame()
		c.mu.Lock()
		ended := err == nil && c.handleLocked(f)
		if err == nil && c.in.Buffered() == 0 {
			err = c.flushLocked()
		}
		if c.err == nil {
			c.err = err
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
		if ended {
			select {
			case c.more <- struct{}{}:
			default:
			}
		}
	}
}

// handleLocked takes one frame, and reports whether it has ended a call.
func (c *conn) handleLocked(f http2.Frame) (ended bool) {
	id := f.Header().StreamID
	switch f := f.(type) {
	case *http2.DataFrame:
		c.answeredLocked(id, time.Now())
	case *http2.HeadersFrame:
		return f.StreamEnded() && c.endedLocked(id)
	case *http2.RSTStreamFrame:
		return c.endedLocked(id)
	case *http2.WindowUpdateFrame:
		if id == 0 {
			c.window += int64(f.Increment)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.frames.WritePing(true, f.Data)
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			if most, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
				c.most = min(c.most, int(most))
			}
			_ = c.frames.WriteSettingsAck()
		}
	case *http2.GoAwayFrame:
		c.most = 0 // no more calls
		if c.err == nil {
			c.err = fmt.Errorf("the server ended the connection: %v", f)
		}
	}
	return false
}

// answeredLocked takes the message of an answer: the call is decided.
func (c *conn) answeredLocked(id uint32, now time.Time) {
	w := &c.calls[id/2%callSlots]
	if w.id != id || w.state != waiting {
		return
	}
	w.state = decided
	took := now.Sub(w.intended)
	if took > impatience {
		c.tally.givenUp++ // the caller had, and has only not said so yet
		return
	}
	c.tally.answered++
	c.tally.latency.record(took)
}

// endedLocked ends a stream. Without a message before, the call was refused.
func (c *conn) endedLocked(id uint32) bool {
	w := &c.calls[id/2%callSlots]
	if w.id != id || w.state == free {
		return false
	}
	if w.state == waiting {
		c.tally.refused++
	}
	w.state = free
	c.outstanding--
	return true
}
