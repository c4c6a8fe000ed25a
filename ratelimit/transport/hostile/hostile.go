// Package hostile has misbehaving callers, for tests of server robustness over real connections. They keep
// within the rules of HTTP/2, and stop when the server ends their connection.
package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Caller is one connection, whose frames its user writes. It is not safe for
// concurrent use.
type Caller struct {
	net.Conn
	out    *bufio.Writer
	framer *http2.Framer
	block  bytes.Buffer
	pack   *hpack.Encoder
	next   uint32 // stream
	method string
	acks   bool // pings are answered

	mu      sync.Mutex
	initial int            // guarded by mu: bytes that each call may send unasked
	windows map[uint32]int // guarded by mu: what the server has granted beyond them
	turned  chan struct{}  // something was granted
	ended   chan struct{}  // the server has ended the connection
}

// Dial opens a connection, sends the preface, and reads the server's answer.
func Dial(address string, settings ...http2.Setting) (*Caller, error) {
	c, err := DialDeaf(address, settings...)
	if err == nil {
		go c.read()
	}
	return c, err
}

// DialDeaf opens a connection and says the preface. Nothing that the server sends is
// ever read.
func DialDeaf(address string, settings ...http2.Setting) (*Caller, error) {
	conn, err := dial(address)
	if err != nil {
		return nil, err
	}
	c := &Caller{
		Conn: conn, method: Method, next: 1, out: bufio.NewWriterSize(conn, 64<<10), windows: map[uint32]int{},
		initial: 64<<10 - 1,
		turned:  make(chan struct{}, 1), ended: make(chan struct{}),
	}
	c.framer = http2.NewFramer(c.out, conn)
	c.pack = hpack.NewEncoder(&c.block)
	_ = conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c.out, http2.ClientPreface)
	_ = c.framer.WriteSettings(settings...)
	if err := c.out.Flush(); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// TLS is an address whose port speaks TLS; whose certificate it is does not matter
// to an attacker.
func TLS(address string) string { return tlsScheme + address }

const tlsScheme = "tls:"

func dial(address string) (net.Conn, error) {
	step()
	conn, err := dialed(address)
	if err != nil {
		return nil, err
	}
	return paced{conn}, nil
}

func dialed(address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	if plain, is := strings.CutPrefix(address, tlsScheme); is {
		over := tls.Dialer{
			NetDialer: &d,
			Config:    &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}, //nolint:gosec // it attacks
		}
		return over.DialContext(context.Background(), "tcp", plain)
	}
	return d.DialContext(context.Background(), "tcp", address)
}

func (c *Caller) read() {
	defer close(c.ended)
	for {
		f, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.PingFrame:
			if c.acks && !f.IsAck() {
				_ = c.framer.WritePing(true, f.Data)
				_ = c.Flush()
			}
		case *http2.SettingsFrame:
			if window, ok := f.Value(http2.SettingInitialWindowSize); ok {
				c.grant(func() { c.initial = int(window) })
			}
		case *http2.WindowUpdateFrame:
			c.grant(func() { c.windows[f.StreamID] += int(f.Increment) })
		}
	}
}

func (c *Caller) grant(change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()
	select {
	case c.turned <- struct{}{}:
	default:
	}
}

// The called methods: those of Envoy, and that of peers.
const (
	Method      = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	QuotaMethod = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"
	PeerMethod  = "/sluice.routing.v1.Peer/Exchange"
	WatchMethod = "/grpc.health.v1.Health/Watch"
	CheckMethod = "/grpc.health.v1.Health/Check"
)

// Call begins a call with more headers.
func (c *Caller) Call(more ...hpack.HeaderField) (stream uint32, err error) {
	c.block.Reset()
	fields := append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: c.method},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...)
	for _, f := range fields {
		_ = c.pack.WriteField(f)
	}
	stream = c.next
	c.next += 2
	err = c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.block.Bytes(),
		EndHeaders: true,
	})
	return stream, err
}

// Message is a request as it travels.
func Message(packed byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{packed}, uint32(len(body)))
	return append(b, body...)
}

// Data sends a piece of a call's request, after which there is more.
func (c *Caller) Data(stream uint32, b []byte) error { return c.framer.WriteData(stream, false, b) }

// LastData sends the last piece of a call's request.
func (c *Caller) LastData(stream uint32, b []byte) error { return c.framer.WriteData(stream, true, b) }

// Flush sends the written frames.
func (c *Caller) Flush() error { return c.out.Flush() }

// PackedHeaders sends calls whose headers are a byte each and unpack to 4 KB: 16
// MB a call.
func PackedHeaders(address string, calls int) error {
	c, err := Dial(address)
	if err != nil {
		return err
	}
	defer c.Close()
	large := hpack.HeaderField{Name: "x-bin", Value: strings.Repeat("QUJD", 1000)}
	fields := slices.Repeat([]hpack.HeaderField{large}, 4000)
	for range calls {
		if _, err := c.Call(fields...); err != nil {
			return err
		}
		if err := c.Flush(); err != nil {
			return err
		}
	}
	c.hold(time.Second)
	return nil
}

// hold keeps the connection open for a while, or until the server ends it.
func (c *Caller) hold(d time.Duration) {
	select {
	case <-c.ended:
	case <-time.After(d):
	}
}

// Unfinished sends calls of a method on one connection whose request lacks its last byte, in
// data frames of so many bytes. It holds them for a while.
func Unfinished(method, address string, calls, size, frame int, hold time.Duration) error {
	whole := Message(0, make([]byte, size))
	return Endless(method, address, calls, whole[:len(whole)-1], frame, hold)
}

// Endless sends calls of a method on one connection that begin so and do not end, as the server's windows let it. It
// holds them for a while.
func Endless(method, address string, calls int, whole []byte, frame int, hold time.Duration) error {
	c, err := Dial(address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.method = method
	sent := make(map[uint32]int, calls)
	const first = 60 << 10 // of at least 64 KB
	for range calls {
		stream, err := c.Call()
		if err != nil {
			return err
		}
		if err := c.pieces(stream, whole[:min(first, len(whole))], frame); err != nil {
			return err
		}
		sent[stream] = min(first, len(whole))
	}
	for end := time.Now().Add(hold); time.Now().Before(end); {
		for stream, n := range sent {
			c.mu.Lock()
			granted := c.initial + c.windows[stream]
			c.mu.Unlock()
			if upTo := min(granted, len(whole)); upTo > n {
				if err := c.pieces(stream, whole[n:upTo], frame); err != nil {
					return err
				}
				sent[stream] = upTo
			}
		}
		select {
		case <-c.ended:
			return nil
		case <-c.turned:
		case <-time.After(time.Until(end)):
		}
	}
	return nil
}

func (c *Caller) pieces(stream uint32, b []byte, frame int) error {
	for len(b) > 0 {
		n := min(frame, len(b))
		if err := c.Data(stream, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return c.Flush()
}

// Unread sends whole calls for a while, and does not read the answers.
func Unread(address string, request []byte, d time.Duration) error {
	c, err := DialDeaf(address)
	if err != nil {
		return err
	}
	return c.flood(request, d)
}

// Windowless sends whole calls for a while. It reads the connection, and lets no
// reply have any data.
func Windowless(address string, request []byte, d time.Duration) error {
	c, err := Dial(address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	if err != nil {
		return err
	}
	return c.flood(request, d)
}

// flood sends whole calls until d is over, or the server takes no more. Then it ends the connection.
func (c *Caller) flood(request []byte, d time.Duration) error {
	defer c.Close()
	whole := Message(0, request)
	for end := time.Now().Add(d); time.Now().Before(end); {
		_ = c.SetWriteDeadline(end)
		stream, err := c.Call()
		if err != nil {
			return err
		}
		last := len(whole) - len(whole)%dataFrame
		if err := c.pieces(stream, whole[:last], dataFrame); err != nil {
			return err
		}
		if err := c.LastData(stream, whole[last:]); err != nil {
			return err
		}
		if err := c.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// Headers has connections make calls for a while whose headers are so many bytes, and differ from call to call.
func Headers(address string, connections, size int, d time.Duration) error {
	return each(address, connections, d, func(c *Caller, n int) error {
		// In no table, and in a code that has to be looked at bit by bit.
		x := hpack.HeaderField{Name: "x", Value: fmt.Sprintf("%0*d", size*8/5, n), Sensitive: true}
		stream, err := c.Call(x, hpack.HeaderField{Name: "grpc-timeout", Value: "20m"})
		if err != nil {
			return err
		}
		return c.LastData(stream, Message(0, nil))
	})
}

// Frame writes one that begins no call, and brings nothing.
type Frame func(c *Caller, n int) error

// Pings, and other frames of that kind.
var (
	Pings      Frame = func(c *Caller, n int) error { return c.framer.WritePing(false, [8]byte{byte(n)}) }
	Priorities Frame = func(c *Caller, n int) error {
		return c.framer.WritePriority(uint32(2*(n%100)+1), http2.PriorityParam{Weight: uint8(n)})
	}
	Settings  Frame = func(c *Caller, _ int) error { return c.framer.WriteSettings() }
	EmptyData Frame = func(c *Caller, n int) error {
		if n == 0 {
			if _, err := c.Call(); err != nil {
				return err
			}
		}
		return c.Data(1, nil)
	}
	Windows Frame = func(c *Caller, _ int) error { return c.framer.WriteWindowUpdate(0, 1) }
)

// Frames has connections send such frames for a while.
func Frames(address string, connections int, write Frame, d time.Duration) error {
	return each(address, connections, d, write)
}

// each has connections write for a while, and opens those anew that the server ends.
func each(address string, connections int, d time.Duration, write Frame, settings ...http2.Setting) error {
	end := time.Now().Add(d)
	errs := make([]error, connections)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for time.Now().Before(end) && errs[i] == nil {
				errs[i] = writes(address, end, write, settings...)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func writes(address string, end time.Time, write Frame, settings ...http2.Setting) error {
	c, err := Dial(address, settings...)
	if err != nil {
		return err
	}
	defer c.Close()
	for n := 0; time.Now().Before(end); n++ {
		select {
		case <-c.ended:
			return nil
		default:
		}
		if write(c, n) != nil || n%64 == 63 && c.Flush() != nil {
			return nil // the server has ended it, and need not say so first
		}
	}
	return nil
}

// dataFrame is the most that a server takes in one frame unless it says otherwise.
const dataFrame = 16 << 10

// NeverBegin has connections begin a call of a method each 2 ms, for a while, whose requests never become complete.
// Each is reset after 90 ms.
func NeverBegin(method, address string, connections int, d time.Duration) error {
	return lingers(method, address, connections, d, nil)
}

// NeverTaken is NeverBegin with whole calls, whose answers find no window.
func NeverTaken(method, address string, connections int, request []byte, d time.Duration) error {
	none := http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}
	return lingers(method, address, connections, d, Message(0, request), none)
}

func lingers(method, address string, connections int, d time.Duration, whole []byte, settings ...http2.Setting) error {
	const every, reset = 2 * time.Millisecond, 90 * time.Millisecond
	end := time.Now().Add(d)
	return each(address, connections, d, func(c *Caller, n int) error {
		c.method = method
		id, err := c.Call()
		if err == nil && whole != nil {
			err = c.LastData(id, whole)
		}
		if old := int64(id) - 2*int64(reset/every); err == nil && old > 0 {
			err = c.framer.WriteRSTStream(uint32(old), http2.ErrCodeCancel)
		}
		if err != nil || time.Now().After(end) {
			return err
		}
		time.Sleep(every)
		return c.Flush()
	}, settings...)
}

// Calls has connections make whole calls of a method for a while.
func Calls(method, address string, connections int, request []byte, d time.Duration) error {
	return each(address, connections, d, func(c *Caller, _ int) error {
		c.method = method
		id, err := c.Call()
		if err != nil {
			return err
		}
		return c.LastData(id, Message(0, request))
	})
}

// Leave opens connections one after the other, for a while, which begin calls of a method and close.
func Leave(method, address string, calls int, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c, err := DialDeaf(address)
		if err != nil {
			return err
		}
		c.method = method
		for range calls {
			if _, err := c.Call(); err != nil {
				break
			}
		}
		_ = c.Flush()
		c.Close()
	}
	return nil
}

// Rewindow has connections with a thousand open calls of a method change the windows of all of them, for a while.
func Rewindow(method, address string, connections int, d time.Duration) error {
	const calls = 1000
	return each(address, connections, d, func(c *Caller, n int) error {
		c.method = method
		if n < calls {
			_, err := c.Call()
			return err
		}
		return c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n % 2)})
	})
}

// NoPath makes a whole call without a path on a connection of its own, again and again for a while.
func NoPath(address string, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c, err := Dial(address)
		if err != nil {
			return err
		}
		c.method = ""
		id, _ := c.Call()
		_ = c.LastData(id, Message(0, nil))
		_ = c.Flush()
		c.hold(5 * time.Millisecond)
		c.Close()
	}
	return nil
}

// Bombs has eight connections send calls for a while whose 4 KB become 4 MB.
func Bombs(address string, d time.Duration) error {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 4<<20-100))
	_ = z.Close()
	whole := Message(1, packed.Bytes())
	return each(address, 8, d, func(c *Caller, _ int) error {
		stream, err := c.Call(hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"})
		if err != nil {
			return err
		}
		return c.LastData(stream, whole)
	})
}

// Silent opens connections that say nothing after the preface, but answer pings:
// they look alive. The function that it returns closes them.
func Silent(address string, n int) (closeAll func(), err error) {
	var callers []*Caller
	closeAll = func() {
		for _, c := range callers {
			c.Close()
		}
	}
	for range n {
		c, err := DialDeaf(address)
		if err != nil {
			return closeAll, err
		}
		c.acks = true
		go c.read()
		callers = append(callers, c)
	}
	return closeAll, nil
}

// poster keeps connections, as any client does.
var poster = http.Client{Transport: &http.Transport{
	DialContext: func(_ context.Context, _, address string) (net.Conn, error) { return dial(address) },
}}

// Post sends a body to /json and returns the status and the answer.
func Post(address, body string) (status int, answer string, err error) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://"+address+"/json",
		strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	a, err := poster.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	return a.StatusCode, string(text), err
}

// Unheard posts a body to /json for a while, over a new connection each time. The last keep of them stay open. None
// reads its answer.
func Unheard(address, body string, keep int, d time.Duration) error {
	whole := fmt.Appendf(nil, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for end := time.Now().Add(d); time.Now().Before(end); {
		c, err := dial(address)
		if err != nil {
			return err
		}
		_ = c.SetWriteDeadline(end)
		_, _ = c.Write(whole)
		open = append(open, c)
		if len(open) > keep {
			open[0].Close()
			open = open[1:]
		}
	}
	return nil
}

// Empties is a request of so many bytes that is nothing but empty descriptors.
func Empties(size int) string {
	const head, tail = `{"domain":"d","descriptors":[{}`, `]}`
	return head + strings.Repeat(",{}", (size-len(head)-len(tail))/3) + tail
}

// HalfBodies opens requests to /json that send all of their body but its last
// byte. The function that it returns ends them.
func HalfBodies(address string, n, size int) (stop func(), err error) {
	var open []net.Conn
	stop = func() {
		for _, c := range open {
			c.Close()
		}
	}
	for range n {
		c, err := dial(address)
		if err != nil {
			return stop, err
		}
		open = append(open, c)
	}
	body := `{"domain":"` + strings.Repeat("x", size)
	whole := fmt.Appendf(nil, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body)+1, body)
	var sending sync.WaitGroup
	for _, c := range open {
		_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
		sending.Go(func() { _, _ = c.Write(whole) }) // a server that has refused it may not read the rest
	}
	sending.Wait()
	return stop, nil
}
