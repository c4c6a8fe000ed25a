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

// The called methods: those of Envoy, and that of peers.
const (
	Method      = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	QuotaMethod = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"
	PeerMethod  = "/sluice.routing.v1.Peer/Exchange"
	WatchMethod = "/grpc.health.v1.Health/Watch"
	CheckMethod = "/grpc.health.v1.Health/Check"
)

// TLS is an address whose port speaks TLS; whose certificate it is does not matter
// to an attacker.
func TLS(address string) string { return tlsScheme + address }

const tlsScheme = "tls:"

// dataFrame is the most that a server takes in one frame unless it says otherwise.
const dataFrame = 16 << 10

// Caller is one connection. What it writes is sent by flush, which has the error of any write before. It is not safe
// for concurrent use.
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

// dial opens a connection, says the preface, and reads the server's answers.
func dial(address, method string, settings ...http2.Setting) (*Caller, error) {
	c, err := dialDeaf(address, method, settings...)
	if err == nil {
		go c.read()
	}
	return c, err
}

// dialDeaf is dial, and reads nothing.
func dialDeaf(address, method string, settings ...http2.Setting) (*Caller, error) {
	conn, err := connect(address)
	if err != nil {
		return nil, err
	}
	c := &Caller{
		Conn: conn, method: method, next: 1, out: bufio.NewWriterSize(conn, 64<<10), windows: map[uint32]int{},
		initial: 64<<10 - 1, turned: make(chan struct{}, 1), ended: make(chan struct{}),
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

// connect opens a connection that keeps the pace.
func connect(address string) (conn net.Conn, err error) {
	step()
	d := net.Dialer{Timeout: 5 * time.Second}
	if plain, is := strings.CutPrefix(address, tlsScheme); is {
		anyone := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // it attacks
		conn, err = (&tls.Dialer{NetDialer: &d, Config: anyone}).DialContext(context.Background(), "tcp", plain)
	} else {
		conn, err = d.DialContext(context.Background(), "tcp", address)
	}
	return paced{conn}, err
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
				_ = c.out.Flush()
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

// begin begins a call with more headers.
func (c *Caller) begin(more ...hpack.HeaderField) (stream uint32) {
	c.block.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: c.method},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		_ = c.pack.WriteField(f)
	}
	stream = c.next
	c.next += 2
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.block.Bytes(), EndHeaders: true,
	})
	return stream
}

// call makes a whole call with that request.
func (c *Caller) call(whole []byte, more ...hpack.HeaderField) {
	c.pieces(c.begin(more...), whole, dataFrame, true)
}

func (c *Caller) pieces(stream uint32, b []byte, frame int, ends bool) {
	for len(b) > frame {
		_ = c.framer.WriteData(stream, false, b[:frame])
		b = b[frame:]
	}
	_ = c.framer.WriteData(stream, ends, b)
}

// hold keeps the connection open for a while, or until the server ends it.
func (c *Caller) hold(d time.Duration) {
	select {
	case <-c.ended:
	case <-time.After(d):
	}
}

// Message is a request as it travels.
func Message(packed byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{packed}, uint32(len(body))), body...)
}

// PackedHeaders sends calls whose headers are a byte each and unpack to 4 KB: 16
// MB a call.
func PackedHeaders(address string, calls int) error {
	c, err := dial(address, Method)
	if err != nil {
		return err
	}
	defer c.Close()
	large := hpack.HeaderField{Name: "x-bin", Value: strings.Repeat("QUJD", 1000)}
	fields := slices.Repeat([]hpack.HeaderField{large}, 4000)
	for range calls {
		c.begin(fields...)
		if err := c.out.Flush(); err != nil {
			return err
		}
	}
	c.hold(time.Second)
	return nil
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
	c, err := dial(address, method)
	if err != nil {
		return err
	}
	defer c.Close()
	sent := make(map[uint32]int, calls)
	send := func(stream uint32, upTo int) error {
		if from := sent[stream]; upTo > from {
			c.pieces(stream, whole[from:upTo], frame, false)
			sent[stream] = upTo
		}
		return c.out.Flush()
	}
	const first = 60 << 10 // of at least 64 KB
	for range calls {
		if err := send(c.begin(), min(first, len(whole))); err != nil {
			return err
		}
	}
	for end := time.Now().Add(hold); time.Now().Before(end); {
		for stream := range sent {
			c.mu.Lock()
			granted := c.initial + c.windows[stream]
			c.mu.Unlock()
			if err := send(stream, min(granted, len(whole))); err != nil {
				return err
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

// noWindow lets no reply have any data.
var noWindow = http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}

// Unread sends whole calls for a while, and does not read the answers.
func Unread(address string, request []byte, d time.Duration) error {
	c, err := dialDeaf(address, Method)
	return flood(c, err, request, d)
}

// Windowless sends whole calls for a while. It reads the connection, and lets no
// reply have any data.
func Windowless(address string, request []byte, d time.Duration) error {
	c, err := dial(address, Method, noWindow)
	return flood(c, err, request, d)
}

// flood sends whole calls until d is over, or the server takes no more. Then it ends the connection.
func flood(c *Caller, err error, request []byte, d time.Duration) error {
	if err != nil {
		return err
	}
	defer c.Close()
	for end := time.Now().Add(d); err == nil && time.Now().Before(end); err = c.out.Flush() {
		_ = c.SetWriteDeadline(end)
		c.call(Message(0, request))
	}
	return err
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
			c.begin()
		}
		return c.framer.WriteData(1, false, nil)
	}
	Windows Frame = func(c *Caller, _ int) error { return c.framer.WriteWindowUpdate(0, 1) }
)

// Frames has connections send such frames for a while.
func Frames(address string, connections int, write Frame, d time.Duration) error {
	return each(address, Method, connections, d, write)
}

// Headers has connections make calls for a while whose headers are so many bytes, and differ from call to call.
func Headers(address string, connections, size int, d time.Duration) error {
	return each(address, Method, connections, d, func(c *Caller, n int) error {
		// In no table, and in a code that has to be looked at bit by bit.
		x := hpack.HeaderField{Name: "x", Value: fmt.Sprintf("%0*d", size*8/5, n), Sensitive: true}
		c.call(Message(0, nil), x, hpack.HeaderField{Name: "grpc-timeout", Value: "20m"})
		return nil
	})
}

// Calls has connections make whole calls of a method for a while.
func Calls(method, address string, connections int, request []byte, d time.Duration) error {
	return each(address, method, connections, d, func(c *Caller, _ int) error {
		c.call(Message(0, request))
		return nil
	})
}

// Bombs has eight connections send calls for a while whose 4 KB become 4 MB.
func Bombs(address string, d time.Duration) error {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 4<<20-100))
	_ = z.Close()
	whole := Message(1, packed.Bytes())
	return each(address, Method, 8, d, func(c *Caller, _ int) error {
		c.call(whole, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"})
		return nil
	})
}

// Rewindow has connections with a thousand open calls of a method change the windows of all of them, for a while.
func Rewindow(method, address string, connections int, d time.Duration) error {
	return each(address, method, connections, d, func(c *Caller, n int) error {
		if n < 1000 {
			c.begin()
			return nil
		}
		return c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n % 2)})
	})
}

// NeverBegin has connections begin a call of a method each 2 ms, for a while, whose requests never become complete.
// Each is reset after 90 ms.
func NeverBegin(method, address string, connections int, d time.Duration) error {
	return lingers(method, address, connections, d, func(c *Caller) { c.begin() })
}

// NeverTaken is NeverBegin with whole calls, whose answers find no window.
func NeverTaken(method, address string, connections int, request []byte, d time.Duration) error {
	return lingers(method, address, connections, d, func(c *Caller) { c.call(Message(0, request)) }, noWindow)
}

func lingers(
	method, address string, connections int, d time.Duration, call func(*Caller), settings ...http2.Setting,
) error {
	const every, reset = 2 * time.Millisecond, 90 * time.Millisecond
	return each(address, method, connections, d, func(c *Caller, _ int) error {
		call(c)
		if old := int64(c.next) - 2 - 2*int64(reset/every); old > 0 {
			_ = c.framer.WriteRSTStream(uint32(old), http2.ErrCodeCancel)
		}
		time.Sleep(every)
		return c.out.Flush()
	}, settings...)
}

// each has connections write for a while, and opens those anew that the server ends.
func each(address, method string, connections int, d time.Duration, write Frame, settings ...http2.Setting) error {
	end := time.Now().Add(d)
	errs := make([]error, connections)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for time.Now().Before(end) && errs[i] == nil {
				errs[i] = writes(address, method, end, write, settings...)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func writes(address, method string, end time.Time, write Frame, settings ...http2.Setting) error {
	c, err := dial(address, method, settings...)
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
		if write(c, n) != nil || n%64 == 63 && c.out.Flush() != nil {
			return nil // the server has ended it, and need not say so first
		}
	}
	return nil
}

// Leave opens connections one after the other, for a while, which begin calls of a method and close. They read nothing.
func Leave(method, address string, calls int, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c, err := dialDeaf(address, method)
		if err != nil {
			return err
		}
		for range calls {
			c.begin()
		}
		_ = c.out.Flush()
		c.Close()
	}
	return nil
}

// NoPath makes a whole call without a path on a connection of its own, again and again for a while.
func NoPath(address string, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c, err := dial(address, "")
		if err != nil {
			return err
		}
		c.call(Message(0, nil))
		_ = c.out.Flush()
		c.hold(5 * time.Millisecond)
		c.Close()
	}
	return nil
}

// Silent opens connections that say nothing after the preface, but answer pings:
// they look alive. The function that it returns closes them.
func Silent(address string, n int) (closeAll func(), err error) {
	var open opened
	for range n {
		c, err := dialDeaf(address, Method)
		if err != nil {
			return open.close, err
		}
		c.acks = true
		go c.read()
		open = append(open, c)
	}
	return open.close, nil
}

// opened are connections that are open.
type opened []net.Conn

func (o opened) close() {
	for _, c := range o {
		c.Close()
	}
}

// poster keeps connections, as any client does.
var poster = http.Client{Transport: &http.Transport{
	DialContext: func(_ context.Context, _, address string) (net.Conn, error) { return connect(address) },
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

// posted is a request to /json whose body is said to have so many bytes.
func posted(length int, body string) []byte {
	return fmt.Appendf(nil, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", length, body)
}

// Unheard posts a body to /json for a while, over a new connection each time. The last keep of them stay open. None
// reads its answer.
func Unheard(address, body string, keep int, d time.Duration) error {
	var open opened
	defer func() { open.close() }()
	for end := time.Now().Add(d); time.Now().Before(end); {
		c, err := connect(address)
		if err != nil {
			return err
		}
		_ = c.SetWriteDeadline(end)
		_, _ = c.Write(posted(len(body), body))
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
	var open opened
	for range n {
		c, err := connect(address)
		if err != nil {
			return open.close, err
		}
		open = append(open, c)
	}
	body := `{"domain":"` + strings.Repeat("x", size)
	var sending sync.WaitGroup
	for _, c := range open {
		_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
		// A server that has refused it may not read the rest.
		sending.Go(func() { _, _ = c.Write(posted(len(body)+1, body)) })
	}
	sending.Wait()
	return open.close, nil
}
