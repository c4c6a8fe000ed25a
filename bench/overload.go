package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// The file has three parts: the measurement (flood), one connection's loop of calls (drive and pace), and HTTP/2 by
// hand (conn).

// OverloadOptions are calls beyond the capacity of a server.
type OverloadOptions struct {
	report.Setup `examples:"sluicelab bench overload"`
	Step         time.Duration `in:"100ms..1m" default:"2s" help:"Length of each measurement."`
	Rounds       int           `in:"1..100" default:"3" help:"Repetitions of each measurement. The median round is shown."`
	Times        []float64     `in:"0.01..100" default:"0.5,1,2,5,10" help:"Offered load as multiples of the capacity."`
}

const (
	// It is the default timeout of Envoy's rate limit filter.
	impatience  = 20 * time.Millisecond // after which callers give up, as Envoy does
	floodConns  = 4
	saturating  = 128  // callers of a closed loop, while the capacity is measured
	outstanding = 1024 // calls at most, by Envoy's circuit breaker
)

// OverloadStep is what became of calls at one multiple of the capacity. Rates are by second.
type OverloadStep struct {
	Times    float64       `json:"times_the_capacity" col:"offered|%gx"`
	Offered  float64       `json:"offered" col:"calls|%.0f"`
	HeldBack float64       `json:"held_back" col:"held back|%.0f"` // by the caller: it had too many outstanding
	Shed     float64       `json:"shed" col:"shed|%.0f"`           // answered UNAVAILABLE
	GivenUp  float64       `json:"given_up" col:"given up|%.0f"`   // by the caller, after it had been sent
	Goodput  float64       `json:"goodput" col:"goodput|%.0f"`     // answered before the caller gave up
	Share    float64       `json:"goodput_of_capacity" col:"of capacity|%.0f%%"`
	Charged  float64       `json:"charged_not_answered" col:"charged, not answered|%.0f"`
	P50      time.Duration `json:"latency_p50" col:"p50"` // of those answered
	P99      time.Duration `json:"latency_p99" col:"p99"`
	CPU      float64       `json:"server_processors" col:"server CPUs"` // that the server had
}

// OverloadReport is all that was measured. Apart is false on a machine with one processor: load and server then
// compete, and the figures say less.
type OverloadReport struct {
	Capacity float64        `json:"capacity"` // answers a second, in a closed loop
	P99      time.Duration  `json:"capacity_latency_p99"`
	Server   int            `json:"processors_of_the_server"`
	Load     int            `json:"processors_of_the_load"`
	Apart    bool           `json:"processors_apart"`
	Steps    []OverloadStep `json:"steps"`
}

// overloadRules limit nothing: that all is charged can be seen in the rule's own count. An answer that comes too late
// has charged tokens for a request that has already failed. Their number shows work for nothing.
const overloadRules = `domain: bench
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// Measure implements [report.Measurement]: a server's capacity, and then its answers at multiples of it. Deferred calls
// run in reverse: connections close first, then this process gets its processors back, then the server stops.
func (o *OverloadOptions) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	var fleet *process.Fleet
	share, rejoin, err := process.Divide(func() (err error) {
		fleet, err = process.StartFleet(o.Binary, overloadRules, 1)
		return err
	})
	if fleet != nil {
		defer fleet.Stop()
	}
	if rejoin != nil {
		defer rejoin()
	}
	if err != nil {
		return nil, err
	}
	m := &flood{OverloadOptions: o, server: fleet.Nodes[0]}
	for range floodConns {
		c, err := dial(m.server.Address)
		if err != nil {
			return nil, err
		}
		defer c.close()
		m.conns = append(m.conns, c)
	}
	r := &OverloadReport{Server: share.Server, Load: share.Own, Apart: share.Apart}
	return r, m.measure(ctx, r)
}

// flood is calls to one server.
type flood struct {
	*OverloadOptions
	server *process.Process
	conns  []*conn
}

// measure plays all multiples, Rounds times. The capacity is measured again before
// each round, and each round is judged by its own: other work on the machine comes
// and goes.
func (f *flood) measure(ctx context.Context, r *OverloadReport) error {
	if _, err := f.play(ctx, 0, f.Step/2); err != nil { // heaps and tables grow
		return err
	}
	steps := make([][]OverloadStep, len(f.Times))
	var capacities []OverloadReport
	for range f.Rounds {
		f.Tell(f.Rounds*(1+len(f.Times)), "capacity")
		t, err := f.play(ctx, 0, f.Step)
		if err != nil {
			return err
		}
		if t.answered == 0 {
			return fmt.Errorf("%s answered none of %d calls within %v", f.server.Address, t.offered, impatience)
		}
		of := float64(t.answered) / f.Step.Seconds()
		capacities = append(capacities, OverloadReport{Capacity: of, P99: t.latency.at(99)})
		for i, times := range f.Times {
			f.Tell(f.Rounds*(1+len(f.Times)), fmt.Sprintf("%v times the capacity", times))
			s, err := f.step(ctx, times, of)
			if err != nil {
				return err
			}
			steps[i] = append(steps[i], s)
		}
	}
	is := middle(capacities)
	r.Capacity, r.P99 = is.Capacity, is.P99
	for _, rounds := range steps {
		r.Steps = append(r.Steps, medianStep(rounds))
	}
	return nil
}

// medianStep is the round in the middle by its goodput, as it was measured. It is a whole round and not a median of
// each figure, because they belong together: calls that were given up are not in the goodput.
func medianStep(rounds []OverloadStep) OverloadStep {
	rounds = slices.SortedFunc(slices.Values(rounds), func(a, b OverloadStep) int { return cmp.Compare(a.Share, b.Share) })
	return rounds[(len(rounds)-1)/2]
}

// step measures one multiple of the capacity. The server's count of admissions is read before and after. The calls that
// it charged and the caller did not count as answered are the difference.
func (f *flood) step(ctx context.Context, times, capacity float64) (OverloadStep, error) {
	charged, err := f.charged()
	if err != nil {
		return OverloadStep{}, err
	}
	var t *outcomes
	began := time.Now()
	cpu, err := process.Spent(f.server, func() (err error) {
		t, err = f.play(ctx, times*capacity, f.Step)
		return err
	})
	if err != nil {
		return OverloadStep{}, err
	}
	took := time.Since(began)
	chargedNow, err := f.charged()
	rate := func(n int64) float64 { return float64(n) / f.Step.Seconds() }
	return OverloadStep{
		Times: times, Offered: rate(t.offered), HeldBack: rate(t.offered - t.sent), Goodput: rate(t.answered), Shed: rate(t.refused), GivenUp: rate(t.givenUp),
		Charged: rate(max(0, chargedNow-charged-t.answered)), P50: t.latency.at(50), P99: t.latency.at(99),
		Share: rate(t.answered) / capacity, CPU: cpu.Seconds() / took.Seconds(),
	}, err
}

// charged is how many tokens have been charged and not been given back: refunded admissions were never counted.
func (f *flood) charged() (int64, error) {
	n, err := f.server.Metric(`sluice_admitted_tokens_total{domain="bench",`)
	return int64(n), err
}

// outcomes are what became of calls. Each sent call is answered, refused or given up in the end.
type outcomes struct {
	offered  int64
	sent     int64 // the others were held back on the caller's side
	answered int64 // before the caller gave up
	refused  int64
	givenUp  int64
	latency  latencies // of those answered
}

func newOutcomes() *outcomes { return &outcomes{latency: newLatencies()} }

func (t *outcomes) add(o *outcomes) {
	t.offered += o.offered
	t.sent += o.sent
	t.answered += o.answered
	t.refused += o.refused
	t.givenUp += o.givenUp
	t.latency.Merge(o.latency.Histogram)
}

// play makes calls over all connections for a time: at a rate, whatever becomes of them, or without one, each caller's
// after its last. The connections begin at different parts of an interval: their calls would otherwise arrive four at a
// time.
func (f *flood) play(ctx context.Context, rate float64, length time.Duration) (*outcomes, error) {
	start := time.Now()
	var plays errgroup.Group
	for i, c := range f.conns {
		p := pace{end: start.Add(length), callers: saturating / floodConns}
		if rate > 0 {
			every := time.Duration(floodConns * float64(time.Second) / rate)
			p = pace{next: start.Add(every * time.Duration(i) / floodConns), end: p.end, every: every}
		}
		plays.Go(func() error { return c.drive(ctx, p) })
	}
	err := plays.Wait()
	total := newOutcomes()
	for _, c := range f.conns {
		c.mu.Lock()
		total.add(c.tally)
		c.tally = newOutcomes()
		c.mu.Unlock()
	}
	return total, err
}

// pace is when the calls of a connection are due. A closed loop has no times: next follows the clock, and callers
// limits it.
type pace struct {
	next, end time.Time
	every     time.Duration
	callers   int // of a closed loop: a call is due while fewer are outstanding; 0: an open one
}

// tick is how often calls that are due are made. A timer for each call would cost more than the call. Latencies still
// count from the intended time.
const tick = 500 * time.Microsecond

// drive makes the calls of one connection, until all that were due have ended. It gives up those whose caller has left.
// Each turn gives up old calls, begins those that are due, writes all frames at once, and then sleeps (open loop) or
// waits for an ended call (closed loop).
//
// A call that is already too late for its caller is not sent. It counts as held back, because it is in offered and not
// in sent.
func (c *conn) drive(ctx context.Context, p pace) error {
	for n := 0; ; {
		now := time.Now()
		if p.callers > 0 {
			p.next = now
		}
		c.mu.Lock()
		c.giveUpLocked(now)
		for !p.next.After(now) && p.next.Before(p.end) && (p.callers == 0 || c.outstanding < p.callers) {
			c.tally.offered++
			n++
			began := now.Sub(p.next) <= impatience && c.beginLocked(messages[n*7919%len(messages)], p.next)
			if !began && p.callers > 0 {
				break
			}
			p.next = p.next.Add(p.every)
		}
		err := errors.Join(c.flushLocked(), c.err, ctx.Err())
		done := !p.next.Before(p.end) && c.outstanding == 0
		c.mu.Unlock()
		if done || err != nil {
			return err
		}
		if p.callers == 0 {
			time.Sleep(tick)
			continue
		}
		select {
		case <-c.more:
		case <-time.After(time.Millisecond):
		}
	}
}

// framed is a request as gRPC frames it. Five bytes come before the message: 0 for "not compressed", and its length in
// big endian.
func framed(value string) []byte {
	body := caller.Encoded(caller.Request("bench", "api_key", value))
	return append([]byte{0, byte(len(body) >> 24), byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// messages are requests of a thousand keys. They are encoded once, so that a call costs the load as little as possible.
var messages = func() (all [1000][]byte) {
	for i := range all {
		all[i] = framed(fmt.Sprintf("key-%06d", i))
	}
	return all
}()

// Page shows the report: what of the capacity is left, and what becomes of the rest.
func (r *OverloadReport) Page() *report.Page {
	where := "server and load share the machine's one processor: the more is offered, the less the server has"
	if r.Apart {
		where = fmt.Sprintf("the server has %d of the machine's processors, the load the other %d", r.Server, r.Load)
	}
	return &report.Page{
		Lead: []string{
			fmt.Sprintf("The capacity is %.0f answers a second, p99 %.1f ms; %s.", r.Capacity, 1000*r.P99.Seconds(), where),
			fmt.Sprintf("Callers give up after %v. A call counts for goodput if it was answered before that, from when it was meant to be made.", impatience),
		},
		Tables: []report.Table{report.Rows("By what is offered; calls a second", r.Steps,
			"held back: by the caller, who had as many outstanding as its circuit breaker or the server's bound on streams allows. shed: answered UNAVAILABLE.",
			"given up: by the caller, after it was sent. charged, not answered: tokens that were kept for answers which came too late or never. p50, p99: of those answered in time.")},
	}
}

// state is what has become of a call. A call goes from waiting to decided at its DATA frame, and to free at the end of
// its stream. Refused calls have no DATA frame, and calls that were given up become free at once.
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

// callSlots is more than the calls that a connection can have begun within a caller's patience. A slot is used again
// after 65,536 calls. Its id says whether a late frame belongs to an earlier call.
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

// dial connects, and waits for the server's settings. The settings come first, because they bound the number of
// streams. 65,535 bytes is the initial window of HTTP/2 (RFC 9113, 6.9.2).
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
// all clients' do. The head is made twice by one encoder: the first block has the texts and puts them into the server's
// HPACK table, and the second only refers to them. The windows are so large that the server is never held up by this
// side.
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

// close ends the connection. The closed socket ends the reader, and close waits for that.
func (c *conn) close() {
	c.tcp.Close()
	<-c.ended
}

// beginLocked adds a call to the pending writes, if it may be sent now. It returns false where the caller's own bound,
// the server's bound on streams, or flow control holds it back. Ids of a client are odd: hence the step of two.
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

// giveUpLocked cancels the calls whose callers wait no longer. Calls are in the order of their intended times, so the
// first that still waits ends the search.
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

// flushLocked writes the pending frames; meanwhile mu is not held. writing keeps the order: two goroutines may flush,
// and frames of one connection must not mix. Frames that are added while it writes go with the next flush.
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

// read handles what the server says until the connection ends. Answers to pings and settings are written when no more
// input is buffered, all at once. more has room for one signal: that is enough to wake the driver.
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

// handleLocked takes one frame, and reports whether it has ended a call. Only frames that change a call or a bound are
// of interest. Others, such as acknowledgements, are passed over.
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
	// The driver sees err in its next turn, and ends the measurement.
	case *http2.GoAwayFrame:
		c.most = 0 // no more calls
		if c.err == nil {
			c.err = fmt.Errorf("the server ended the connection: %v", f)
		}
	}
	return false
}

// answeredLocked takes the message of an answer: the call is decided. The stream stays outstanding until its trailers,
// as it does for the server's bound.
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
