package overload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// state is what has become of a call.
type state uint8

const (
	free     state = iota
	waiting        // sent, and neither answered nor given up
	answered       // in time; its stream has not ended yet
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
	tcp      net.Conn
	patience time.Duration
	fields   [][2]string   // of each call's headers
	traced   bool          // and a traceparent of its own
	head     []byte        // the header block of all calls but the first, if they are not traced
	more     chan struct{} // a call has ended

	mu          sync.Mutex
	err         error          // guarded by mu: why it reads no more
	next        uint32         // guarded by mu: the id of the next stream
	oldest      uint32         // guarded by mu: no older stream waits
	calls       []call         // guarded by mu: by id
	outstanding int            // guarded by mu
	most        int            // guarded by mu: outstanding calls, by our own bound and the server's
	window      int64          // guarded by mu: bytes that may be sent
	out         bytes.Buffer   // guarded by mu: frames to be written
	frames      *http2.Framer  // guarded by mu: into out
	block       bytes.Buffer   // guarded by mu: the header block that was encoded last
	encoder     *hpack.Encoder // guarded by mu: into block
	tally       *tally         // guarded by mu

	writing sync.Mutex // held while frames are written
	ended   chan struct{}
}

// open connects, and waits for the server's settings. Calls on the connection wait
// as long as patience; at most most are outstanding; if they are traced, no two have
// the same headers.
func open(address string, most int, patience time.Duration, traced bool) (*conn, error) {
	tcp, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", address, err)
	}
	c := &conn{
		tcp: tcp, patience: patience, next: 1, oldest: 1, calls: make([]call, callSlots), most: most, window: 65535,
		tally: newTally(), ended: make(chan struct{}), traced: traced, more: make(chan struct{}, 1),
	}
	c.encoder, c.frames = hpack.NewEncoder(&c.block), http2.NewFramer(&c.out, nil)
	c.fields = [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", address},
		{"te", "trailers"},
		{"content-type", "application/grpc"},
		{"grpc-timeout", fmt.Sprintf("%dm", patience.Milliseconds())},
		{"user-agent", "sluice-bench"},
	}
	c.out.WriteString(http2.ClientPreface)
	// Writes into a buffer do not fail.
	_ = c.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	_ = c.frames.WriteWindowUpdate(0, 1<<30)
	c.mu.Lock()
	err = c.flushLocked()
	c.mu.Unlock()
	if err != nil {
		tcp.Close()
		return nil, fmt.Errorf("greeting %s: %w", address, err)
	}
	settled := make(chan struct{})
	go c.read(settled)
	select {
	case <-settled:
	case <-c.ended:
	case <-time.After(5 * time.Second):
		c.fail(errors.New("no settings within 5 s"))
	}
	if err := c.failed(); err != nil {
		c.close()
		return nil, fmt.Errorf("greeting %s: %w", address, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addCallLocked(warmUp, time.Now())
	if !traced {
		c.head = bytes.Clone(c.headersLocked())
	}
	c.tally = newTally()
	return c, c.flushLocked()
}

// headersLocked is the header block of a call. The first of a connection names all fields,
// and every later one refers to them, as all clients' do.
func (c *conn) headersLocked() []byte {
	c.block.Reset()
	for _, f := range c.fields {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // a buffer takes all
	}
	if c.traced {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: "traceparent", Value: fmt.Sprintf("00-%032x-%016x-01", c.next, c.next)})
	}
	return c.block.Bytes()
}

func (c *conn) close() {
	c.tcp.Close()
	<-c.ended
}

func (c *conn) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// begin adds a call to the pending writes, if it may be sent now.
func (c *conn) beginLocked(message []byte, intended time.Time) bool {
	if c.outstanding >= c.most || c.window < int64(len(message)) {
		return false
	}
	c.addCallLocked(message, intended)
	return true
}

func (c *conn) addCallLocked(message []byte, intended time.Time) {
	head := c.head
	if head == nil {
		head = c.headersLocked()
	}
	id := c.next
	c.next += 2
	_ = c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true})
	_ = c.frames.WriteData(id, true, message)
	c.window -= int64(len(message))
	c.calls[id/2%callSlots] = call{id: id, state: waiting, intended: intended}
	c.outstanding++
	c.tally.Sent++
}

// giveUpLocked cancels the calls whose callers wait no longer.
func (c *conn) giveUpLocked(now time.Time) {
	for ; c.oldest < c.next; c.oldest += 2 {
		w := &c.calls[c.oldest/2%callSlots]
		if w.id == c.oldest && w.state == waiting {
			if now.Sub(w.intended) <= c.patience {
				return
			}
			w.state = free
			c.outstanding--
			c.tally.GivenUp++
			_ = c.frames.WriteRSTStream(w.id, http2.ErrCodeCancel)
		}
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
func (c *conn) read(settled chan struct{}) {
	defer close(c.ended)
	in := bufio.NewReaderSize(c.tcp, 256<<10)
	frames := http2.NewFramer(nil, in)
	frames.SetReuseFrames()
	for {
		f, err := frames.ReadFrame()
		if err != nil {
			c.fail(err)
			return
		}
		ended, reply := c.handle(f)
		if _, ok := f.(*http2.SettingsFrame); ok && settled != nil {
			close(settled)
			settled = nil
		}
		if ended {
			select {
			case c.more <- struct{}{}:
			default:
			}
		}
		if reply && in.Buffered() == 0 {
			c.mu.Lock()
			err := c.flushLocked()
			c.mu.Unlock()
			if err != nil {
				c.fail(err)
				return
			}
		}
	}
}

// handle takes one frame. ended says that a call has; reply, that there is
// something to write.
func (c *conn) handle(f http2.Frame) (ended, reply bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := f.Header().StreamID
	switch f := f.(type) {
	case *http2.DataFrame:
		c.answeredLocked(id, time.Now())
	case *http2.HeadersFrame:
		return f.StreamEnded() && c.endedLocked(id), false
	case *http2.RSTStreamFrame:
		return c.endedLocked(id), false
	case *http2.WindowUpdateFrame:
		if id == 0 {
			c.window += int64(f.Increment)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.frames.WritePing(true, f.Data)
			return false, true
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			if most, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
				c.most = min(c.most, int(most))
			}
			_ = c.frames.WriteSettingsAck()
			return false, true
		}
	case *http2.GoAwayFrame:
		c.most = 0 // no more calls
		if c.err == nil {
			c.err = fmt.Errorf("the server ended the connection: %v", f)
		}
	}
	return false, false
}

// answeredLocked takes the message of an answer: the call is decided.
func (c *conn) answeredLocked(id uint32, now time.Time) {
	w := &c.calls[id/2%callSlots]
	if w.id != id || w.state != waiting {
		return
	}
	w.state = answered
	took := now.Sub(w.intended)
	if took > c.patience {
		c.tally.GivenUp++ // the caller had, and has only not said so yet
		return
	}
	c.tally.Answered++
	_ = c.tally.latency.RecordValue(max(1, took.Microseconds()))
}

// endedLocked ends a stream. Without a message before, the call was refused.
func (c *conn) endedLocked(id uint32) bool {
	w := &c.calls[id/2%callSlots]
	if w.id != id || w.state == free {
		return false
	}
	if w.state == waiting {
		c.tally.Refused++
	}
	w.state = free
	c.outstanding--
	return true
}
