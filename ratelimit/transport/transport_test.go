package transport

import (
	"bytes"
	"encoding/binary"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Whatever pieces the bytes come in, the frames are those that were written.
func TestWalkerFindsEveryFrame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		f := http2.NewFramer(&b, nil)
		b.WriteString(http2.ClientPreface)
		var want []frame
		for _, length := range rapid.SliceOfN(rapid.IntRange(0, 300), 1, 20).Draw(t, "lengths") {
			stream := rapid.Uint32Range(1, 1<<31-1).Draw(t, "stream")
			end := rapid.Bool().Draw(t, "end")
			if err := f.WriteData(stream, end, make([]byte, length)); err != nil {
				t.Fatal(err)
			}
			x := frame{kind: frameData, length: length, stream: stream}
			if end {
				x.flags = flagEndStream
			}
			want = append(want, x)
		}
		w := walker{skip: prefaceLen}
		var got []frame
		payload := 0
		for all := b.Bytes(); len(all) > 0; {
			part := all[:rapid.IntRange(1, len(all)).Draw(t, "piece")]
			all = all[len(part):]
			for len(part) > 0 {
				var begun bool
				var piece []byte
				begun, piece, part = w.next(part)
				if begun {
					got = append(got, w.frame)
				}
				payload += len(piece)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d frames, want %d", len(got), len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("frame %d is %v, want %v", i, got[i], want[i])
			}
			payload -= got[i].length
		}
		if payload != 0 {
			t.Fatalf("%d bytes of payload too many", payload)
		}
	})
}

// A conversation's messages end where they end, and what follows belongs to the
// next.
func TestMessagesAreFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []byte
		var ends []int
		for _, length := range rapid.SliceOfN(rapid.IntRange(0, 50), 1, 10).Draw(t, "lengths") {
			all = append(all, 0)
			all = binary.BigEndian.AppendUint32(all, uint32(length))
			all = append(all, make([]byte, length)...)
			ends = append(ends, len(all))
		}
		var m message
		open, at := 0, 0
		for at < len(all) {
			n := rapid.IntRange(1, len(all)-at).Draw(t, "piece")
			tail, completed := m.through(all[at : at+n])
			last, crossed := 0, false
			for _, end := range ends {
				if end <= at+n {
					last = end
					crossed = crossed || end > at
				}
			}
			at += n
			if completed {
				open = 0
			}
			open += tail
			if completed != crossed || open != at-last {
				t.Fatalf("at %d: completed %t, want %t; %d bytes open, want %d", at, completed, crossed, open, at-last)
			}
		}
	})
}

// testGuard is a guard that nothing is written to or read from.
func testGuard(budget *Budget, b Caps) (*guard, net.Conn) {
	here, there := net.Pipe()
	return newGuard(here, here, &b, budget), there
}

type wire struct {
	bytes.Buffer
	*http2.Framer
}

// clientWire begins with what a client says first, and serverWire does not.
func clientWire() *wire {
	w := serverWire()
	w.WriteString(http2.ClientPreface)
	return w
}

func serverWire() *wire {
	w := &wire{}
	w.Framer = http2.NewFramer(&w.Buffer, nil)
	return w
}

// ends is whether a frame is its stream's last.
type ends bool

const (
	goesOn ends = false
	isLast ends = true
)

func (w *wire) headers(stream uint32, end ends) {
	var b bytes.Buffer
	_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: "a", Value: "b"})
	_ = w.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: b.Bytes(), EndHeaders: true,
		EndStream: bool(end),
	})
}

// The held bytes are those of open calls. They grow with their frames, and are 0 when all have ended, in any
// order and from either side.
func TestGuardReckonsOpenCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := NewBudget(1 << 40)
		g, there := testGuard(budget, Caps{HeaderBytes: 1000, Streams: 100})
		defer there.Close()
		in, out := clientWire(), serverWire()
		var open []uint32
		cost := map[uint32]int64{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch {
			case len(open) == 0 || rapid.Bool().Draw(t, "new"):
				stream := uint32(2*len(cost) + 1)
				in.headers(stream, goesOn)
				open = append(open, stream)
				cost[stream] = g.callCost()
			case rapid.Bool().Draw(t, "data"):
				stream := rapid.SampledFrom(open).Draw(t, "stream")
				length := rapid.IntRange(0, 1000).Draw(t, "length")
				_ = in.WriteData(stream, false, make([]byte, length))
				cost[stream] += frameCost(length)
			default:
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				stream := open[i]
				open = append(open[:i], open[i+1:]...)
				cost[stream] = 0
				switch rapid.IntRange(0, 2).Draw(t, "by") {
				case 0:
					_ = in.WriteRSTStream(stream, http2.ErrCodeCancel)
				case 1:
					_ = out.WriteRSTStream(stream, http2.ErrCodeCancel)
				default:
					out.headers(stream, isLast)
				}
			}
			change, ok := g.arrived(in.Next(in.Len()))
			budget.charge(change)
			budget.charge(g.left(out.Next(out.Len())))
			want := int64(0)
			for _, c := range cost {
				want += c
			}
			if !ok || g.held != want || budget.Held() != want {
				t.Fatalf("it holds %d, and the budget %d, want %d", g.held, budget.Held(), want)
			}
		}
		g.Close()
		if budget.Held() != 0 {
			t.Fatalf("%d bytes are left", budget.Held())
		}
	})
}

// A peer's conversation goes on for ever, and costs what is under way.
func TestConversationCostsWhatIsUnderWay(t *testing.T) {
	budget := NewBudget(1 << 20)
	g, there := testGuard(budget, Caps{HeaderBytes: 1000, Conversations: true})
	defer there.Close()
	in := clientWire()
	in.headers(1, goesOn)
	message := append(binary.BigEndian.AppendUint32([]byte{0}, 100_000), make([]byte, 100_000)...)
	for range 100 {
		for b := message; len(b) > 0; {
			n := min(16<<10, len(b))
			_ = in.WriteData(1, false, b[:n])
			b = b[n:]
		}
		change, ok := g.arrived(in.Next(in.Len()))
		if budget.charge(change); !ok || budget.Held() != g.callCost() {
			t.Fatalf("after a whole message %d bytes are held (%t)", budget.Held(), ok)
		}
	}
	_ = in.WriteData(1, false, message[:10_000])
	change, _ := g.arrived(in.Next(in.Len()))
	if budget.charge(change); budget.Held() != g.callCost()+pieceCost(10_000) {
		t.Errorf("of a part of one, %d bytes are held", budget.Held())
	}
	g.Close()
}

// pretended is a holder of so many bytes since an instant.
type pretended struct {
	budget *Budget
	bytes  int64
	since  int64
	over   bool
}

func (p *pretended) holds(since int64) (now, long int64) {
	if p.since <= since {
		long = p.bytes
	}
	return p.bytes, long
}

func (p *pretended) end() {
	p.budget.charge(-p.bytes)
	p.bytes, p.over = 0, true
}

// Who holds most for longer than a moment goes first; the young stay, however
// much they hold, as long as the others hold an eighth.
func TestHeaviestGoesFirst(t *testing.T) {
	b := NewBudget(1000)
	old := nanotime() - int64(2*moment)
	young := &pretended{b, 600, nanotime() + int64(time.Hour), false}
	small := &pretended{b, 130, old, false}
	large := &pretended{b, 270, old, false}
	for _, p := range []*pretended{young, small, large} {
		b.join(p)
		b.charge(p.bytes)
	}
	if b.charge(1); young.over || small.over || !large.over || b.Held() != 731 {
		t.Fatalf("young %t, small %t, large %t ended; %d are held", young.over, small.over, large.over, b.Held())
	}
	if b.charge(700); !small.over || !young.over || b.Held() != 701 {
		t.Errorf("when nobody else is left: %v %v, %d", small, young, b.Held())
	}
	if b.Heaviest.Load() != 3 {
		t.Errorf("%d were counted", b.Heaviest.Load())
	}
}

// A few calls that a busy node has made wait are not what fills a budget: who does is
// ended, though he has begun just now.
func TestHeaviestIsWhoFillsTheBudget(t *testing.T) {
	b := NewBudget(1000)
	waits := &pretended{b, 100, nanotime() - int64(2*moment), false}
	floods := &pretended{b, 900, nanotime() + int64(time.Hour), false}
	for _, p := range []*pretended{waits, floods} {
		b.join(p)
		b.charge(p.bytes)
	}
	if b.charge(1); waits.over || !floods.over {
		t.Errorf("who waits was ended: %t, who floods: %t", waits.over, floods.over)
	}
}

// ready is a listener that has any number of connections ready.
type ready struct {
	net.Listener
	left int
}

func (r *ready) Accept() (net.Conn, error) {
	if r.left--; r.left < 0 {
		return nil, net.ErrClosed
	}
	c, _ := net.Pipe()
	return c, nil
}

// Each connection of thousands that are opened at once begins before the next is taken,
// so that those that wait are not in the scheduler's queue, before everybody's calls.
func TestListenerTakesOneAfterTheOther(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := Listen(&ready{left: 1000}, 0, nil)
	var waiting, most atomic.Int32
	var all sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		most.Store(max(most.Load(), waiting.Add(1)))
		all.Go(func() {
			waiting.Add(-1)
			c.Close()
		})
	}
	all.Wait()
	if n := most.Load(); n > 10 {
		t.Errorf("%d connections of 1000 were taken and had not begun", n)
	}
}

// One connection too many closes the one that has been silent longest.
func TestListenerClosesTheSilent(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	budget := NewBudget(1)
	l := Listen(raw, 3, budget)
	defer l.Close()
	var there, here []net.Conn
	dial := func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		a, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		there, here = append(there, c), append(here, a)
	}
	for range 3 {
		dial()
	}
	one := make([]byte, 1)
	for _, i := range []int{0, 2} { // the second says nothing
		if _, err := there[i].Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := here[i].Read(one); err != nil {
			t.Fatal(err)
		}
	}
	dial()
	if _, err := there[1].Read(one); err == nil {
		t.Error("the silent one is open")
	}
	for _, i := range []int{0, 2, 3} {
		if _, err := here[i].Write(one); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if l.Open() != 3 || budget.Crowded.Load() != 1 {
		t.Errorf("%d are open, %d were closed", l.Open(), budget.Crowded.Load())
	}
	for i := range here {
		here[i].Close()
		there[i].Close()
	}
	if l.Open() != 0 {
		t.Errorf("%d are open", l.Open())
	}
}

// A request that is not complete in time, and a reply that is not taken, end the
// connection; a pause between calls does not.
func TestGuardEndsWhatDoesNotGoOn(t *testing.T) {
	caps := Caps{HeaderBytes: 1000, Streams: 100, RequestTimeout: 100 * time.Millisecond}
	accept := func() (*guard, net.Conn, *Budget) {
		raw, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		budget := NewBudget(1 << 30)
		l := Listen(raw, 0, budget)
		defer l.Close()
		there, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return newGuard(c, c, &caps, budget), there, budget
	}
	buffer := make([]byte, 1<<10)
	g, there, budget := accept()
	in := clientWire()
	in.headers(1, goesOn)
	_, _ = there.Write(in.Bytes())
	for err := error(nil); err == nil; {
		_, err = g.Read(buffer)
	}
	if budget.Stalled.Load() != 1 {
		t.Errorf("%d connections were found to stall with a request", budget.Stalled.Load())
	}
	g.Close()
	there.Close()

	g, there, budget = accept()
	for err := error(nil); err == nil; { // until the buffers between are full
		_, err = g.Write(make([]byte, 1<<20))
	}
	if budget.Stalled.Load() != 1 {
		t.Errorf("%d connections were found to stall with a reply", budget.Stalled.Load())
	}
	g.Close()
	there.Close()

	g, there, budget = accept()
	in = clientWire()
	in.headers(1, isLast)
	_, _ = there.Write(in.Bytes())
	if _, err := g.Read(buffer); err != nil {
		t.Fatal(err)
	}
	later := time.AfterFunc(3*caps.RequestTimeout, func() { _, _ = there.Write([]byte{0}) })
	defer later.Stop()
	if _, err := g.Read(buffer); err != nil || budget.Stalled.Load() != 0 {
		t.Errorf("a silent connection whose request is complete: %v", err)
	}
	g.Close()
	there.Close()
}

// A connection that opens calls far beyond what it may ends.
func TestTooManyCallsEndAConnection(t *testing.T) {
	budget := NewBudget(1 << 40)
	g, there := testGuard(budget, Caps{Streams: 10})
	defer there.Close()
	in := clientWire()
	for i := range uint32(1021) {
		in.headers(2*i+1, goesOn)
	}
	change, ok := g.arrived(in.Bytes())
	budget.charge(change)
	if ok || budget.Excess.Load() != 1 {
		t.Errorf("%t, %d", ok, budget.Excess.Load())
	}
	g.Close()
	if budget.Held() != 0 {
		t.Errorf("%d bytes are left", budget.Held())
	}
}

// A body in flight counts until it is let go, and one that has held most for long
// is ended for others.
func TestBodies(t *testing.T) {
	b := NewBudget(100 << 10)
	ended := 0
	slow := b.Body(func() { ended++ })
	slow.since -= int64(2 * moment)
	if !slow.Grow(50 << 10) {
		t.Fatal("it may not grow")
	}
	quick := b.Body(func() { t.Error("the wrong one was ended") })
	if !quick.Grow(40<<10) || ended != 1 || slow.Grow(1) || !slow.Ended() {
		t.Errorf("%d were ended", ended)
	}
	slow.Close()
	quick.Close()
	if b.Held() != 0 {
		t.Errorf("%d bytes are left", b.Held())
	}
	var none *Budget
	v := none.Body(func() {})
	if !v.Grow(1 << 30) {
		t.Error("without a budget there is no bound")
	}
	v.Close()
}

// Every bound that makes no sense is reported under the name of its setting.
func TestBoundsValidate(t *testing.T) {
	b := Default()
	if err := b.Validate(); err != nil {
		t.Error(err)
	}
	b = Caps{HeaderBytes: 1, MessageBytes: 1 << 30}
	err := b.Validate()
	for _, name := range []string{
		"Connections is 0", "Streams",
		"HeaderBytes is 1,", "MessageBytes", "the time of a request", "the idle time",
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("no %s in %v", name, err)
		}
	}
}
