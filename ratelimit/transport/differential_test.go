package transport

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-gate/sluice/ratelimit"
)

var connections = flag.Int("connections", 150, "random connections that TestScreenIsNotSeen plays")

// coin is a gate that refuses calls at random, and counts.
type coin struct {
	mu      sync.Mutex
	random  *rand.Rand
	often   float64
	in      int
	refused int
}

func (c *coin) Arrive(ratelimit.Instant, int, time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.random.Float64() < c.often {
		c.refused++
		return false
	}
	c.in++
	return true
}

func (c *coin) Leave(_ ratelimit.Instant, _ int, arrived ...ratelimit.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in -= len(arrived)
}

// watching are credentials that count reads which bring nothing, and which gRPC would repeat at once: a
// connection takes processor time only for bytes.
type watching struct {
	guarding
	nothing atomic.Int64
}

type watched struct {
	net.Conn
	by *watching
}

func (w *watching) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := w.guarding.ServerHandshake(raw)
	return &watched{c, w}, info, err
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n == 0 && err == nil {
		w.by.nothing.Add(1)
		return 0, io.ErrNoProgress
	}
	return n, err
}

// differentialServer answers each call with a digest of its headers.
func differentialServer(t testing.TB, gated *Gated) (address string, l *Listener) {
	t.Helper()
	caps, budget := Default(), NewBudget(1<<30)
	watch := &watching{guarding: guarding{insecure.NewCredentials(), caps, budget, gated}}
	server := grpc.NewServer(append(Options(caps, budget, nil, gated), grpc.Creds(watch),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			in, _ := metadata.FromIncomingContext(s.Context())
			h := fnv.New64a()
			for _, name := range slices.Sorted(maps.Keys(in)) {
				fmt.Fprintf(h, "%s=%q;", name, in[name])
			}
			method, _ := grpc.Method(s.Context())
			s.SetTrailer(metadata.Pairs("saw", fmt.Sprintf("%s %x", method, h.Sum64())))
			return nil
		}))...)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = Listen(raw, 0, nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
		if n := watch.nothing.Load(); n > 0 {
			t.Errorf("%d reads brought nothing", n)
		}
	})
	return raw.Addr().String(), l
}

// script is what a caller sends on one connection, and how large it lets the table of answers be.
type script struct {
	pieces [][]byte
	calls  []uint32
	limits []uint32 // of the table of answers, from each frame of settings on
}

// randomScript is legal traffic: blocks that refer to each other, tables that are resized, headers in pieces,
// padded, of a byte or larger than they may be.
func randomScript(r *rand.Rand, most int) *script {
	s, limit := &script{}, uint32(tableSize)
	var wire, block bytes.Buffer
	wire.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&wire, nil)
	pack := hpack.NewEncoder(&block)
	settings := func() {
		var all []http2.Setting
		for range r.IntN(3) {
			all = append(all, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 14})
		}
		if r.IntN(3) == 0 {
			size := []uint32{0, 1, 31, 64, 100, 1000, 4095, 4096}[r.IntN(8)]
			limit = min(limit, size)
			all = append(all, http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
		}
		s.limits = append(s.limits, limit)
		_ = f.WriteSettings(all...)
	}
	settings()
	// A few values that come again and again, some of them large, and some that never do.
	pool := make([][2]string, 1+r.IntN(12))
	for i := range pool {
		size := []int{1, 10, 30, 200, 1500, 3000, 4000}[r.IntN(7)]
		pool[i] = [2]string{fmt.Sprintf("x-%d", r.IntN(6)), strings.Repeat(string(rune('a'+r.IntN(20))), size)}
	}
	large, fresh, sensitive := r.Float64()*0.3, r.Float64()*0.5, r.Float64()*0.3
	burst := []int{1, 3, 40, 400}[r.IntN(4)]
	short := r.IntN(3) == 0 // calls of some twenty bytes, hundreds in one read
	if short {
		fresh, sensitive = 0, 0
	}
	next := uint32(1)
	for range 1 + r.IntN(most) {
		if r.IntN(60) == 0 {
			pack.SetMaxDynamicTableSize([]uint32{0, 40, 100, 1000, 4096}[r.IntN(5)])
		}
		if r.IntN(80) == 0 {
			settings()
		}
		block.Reset()
		size := 0
		write := func(name, value string) {
			size += len(name) + len(value) + 32
			_ = pack.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: r.Float64() < sensitive})
		}
		method := gatedMethod
		if r.IntN(8) == 0 {
			method = otherMethod
		}
		for _, x := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", method},
			{":authority", "x"},
			{"content-type", "application/grpc"},
			{"te", "trailers"},
		} {
			write(x[0], x[1])
		}
		if !short && r.IntN(2) == 0 {
			write("grpc-timeout", []string{"5S", "20S", "1M", "30000m"}[r.IntN(4)])
		}
		for r.Float64() < fresh {
			write("traceparent", fmt.Sprintf("%0*d", 1+r.IntN(60), next))
		}
		for r.IntN(2) == 0 {
			x := pool[r.IntN(len(pool))]
			if (len(x[1]) < 1000 || r.Float64() < large) && size < 8<<10 {
				write(x[0], x[1])
			}
		}
		b := block.Bytes()
		p := http2.HeadersFrameParam{StreamID: next, BlockFragment: b, EndHeaders: true, EndStream: r.IntN(4) > 0}
		if short {
			p.EndStream = r.IntN(20) > 0
		}
		if r.IntN(15) == 0 {
			p.PadLength = uint8(r.IntN(256))
		}
		if r.IntN(40) == 0 { // it has a bound of its own
			write("trailer", strings.Repeat("~", []int{1, 3000, 7000}[r.IntN(3)]))
		}
		b = block.Bytes()
		p.BlockFragment = b
		// gRPC ends a connection where headers go on that are too large already.
		if size < 8<<10 && r.IntN(12) == 0 {
			cut := r.IntN(len(b) + 1)
			p.EndHeaders, p.BlockFragment = false, b[:cut]
			_ = f.WriteHeaders(p)
			_ = f.WriteContinuation(next, true, b[cut:])
		} else {
			_ = f.WriteHeaders(p)
		}
		if !p.EndStream {
			_ = f.WriteData(next, true, make([]byte, 32+r.IntN(200)))
		}
		s.calls = append(s.calls, next)
		next += 2 * uint32(1+r.IntN(3))
		if r.IntN(burst) == 0 {
			s.pieces = append(s.pieces, bytes.Clone(wire.Bytes()))
			wire.Reset()
		}
	}
	s.pieces = append(s.pieces, bytes.Clone(wire.Bytes()))
	if r.IntN(4) == 0 { // in pieces that have nothing to do with frames
		all := slices.Concat(s.pieces...)
		s.pieces = nil
		for len(all) > 0 {
			n := min(len(all), 1+r.IntN(5000))
			s.pieces, all = append(s.pieces, all[:n]), all[n:]
		}
	}
	return s
}

// play has a server answer a script, and says how each call ended.
func (s *script) play(address string) (fates map[uint32]string, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		for _, p := range s.pieces {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	}()
	f := http2.NewFramer(io.Discard, c)
	decoder, limit, acknowledged, owed := hpack.NewDecoder(tableSize, nil), uint32(tableSize), 0, false
	fates = map[uint32]string{}
	for len(fates) < len(s.calls) {
		frame, err := f.ReadFrame()
		if err != nil {
			return fates, fmt.Errorf("%d of %d calls have ended: %w", len(fates), len(s.calls), err)
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if frame.IsAck() {
				owed = owed || s.limits[acknowledged] < limit
				limit = s.limits[acknowledged]
				acknowledged++
			}
		case *http2.HeadersFrame:
			block := frame.HeaderBlockFragment()
			if owed && block[0]&0xe0 != resize {
				return fates, fmt.Errorf("call %d: the table may have %d bytes, and its headers begin with %x",
					frame.StreamID, limit, block[0])
			}
			owed = false
			fields, err := decoder.DecodeFull(block)
			if err != nil {
				return fates, fmt.Errorf("call %d: %w", frame.StreamID, err)
			}
			if frame.StreamEnded() {
				var said []string
				for _, x := range fields {
					if x.Name == "grpc-status" || x.Name == "saw" || x.Name == "grpc-message" {
						said = append(said, x.Name+"="+x.Value)
					}
				}
				fates[frame.StreamID] = strings.Join(said, " ")
			}
		case *http2.RSTStreamFrame:
			if _, known := fates[frame.StreamID]; !known {
				fates[frame.StreamID] = frame.ErrCode.String()
			}
		}
	}
	return fates, nil
}

// toldNotNow is how a call ends that the gate refused.
const toldNotNow = "grpc-status=14 grpc-message=not now"

// compare plays a script to a server without a screen and to one with it: all calls that are not refused end the same
// way.
func (s *script) compare(plain, screened string, count func(fate string)) error {
	want, err := s.play(plain)
	if err != nil {
		return fmt.Errorf("without a screen: %w", err)
	}
	got, err := s.play(screened)
	if err != nil {
		return err
	}
	for id, fate := range got {
		if count(fate); fate != toldNotNow && fate != want[id] {
			return fmt.Errorf("call %d ended with %q, without a screen with %q", id, fate, want[id])
		}
	}
	return nil
}

// drawn are numbers from bytes, and when these are used up, from a seed.
type drawn struct {
	rest []byte
	rand.Source
}

func (d *drawn) Uint64() uint64 {
	if len(d.rest) < 2 {
		return d.Source.Uint64()
	}
	n := uint64(binary.BigEndian.Uint16(d.rest))
	d.rest = d.rest[2:]
	return n * 0x1000100010001 // in the high bits, and in the low ones
}

// FuzzScreen is TestScreenIsNotSeen for what the fuzzer makes of it.
func FuzzScreen(f *testing.F) {
	gate := &coin{random: rand.New(rand.NewPCG(1, 2)), often: 0.5}
	plain, _ := differentialServer(f, nil)
	screened, _ := differentialServer(f, gatedBy(gate))
	f.Add([]byte("any"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := randomScript(rand.New(&drawn{b, rand.NewPCG(uint64(len(b)), 0)}), 30)
		if err := s.compare(plain, screened, func(string) {}); err != nil {
			t.Error(err)
		}
	})
}

// A screen is invisible, for any legal input of a caller, and any refused calls of it. The others end as
// without a screen, no connection hangs, and the gate gets the end of each call that it admitted.
func TestScreenIsNotSeen(t *testing.T) {
	gate := &coin{random: rand.New(rand.NewPCG(1, 2))}
	plain, _ := differentialServer(t, nil)
	screened, l := differentialServer(t, gatedBy(gate))
	var refused, answered, large atomic.Int64
	count := func(fate string) {
		switch {
		case fate == toldNotNow:
			refused.Add(1)
		case strings.Contains(fate, "saw="):
			answered.Add(1)
		default:
			large.Add(1)
		}
	}
	seeds := make(chan uint64)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for seed := range seeds {
				s := randomScript(rand.New(rand.NewPCG(seed, 0)), 600)
				if err := s.compare(plain, screened, count); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
	for seed := range uint64(*connections) {
		gate.mu.Lock()
		gate.often = float64(seed%11) / 10
		gate.mu.Unlock()
		seeds <- seed
	}
	close(seeds)
	all.Wait()
	t.Logf("%d connections: %d calls answered, %d refused, %d too large",
		*connections, answered.Load(), refused.Load(), large.Load())
	if answered.Load() == 0 || refused.Load() == 0 || large.Load() == 0 {
		t.Error("calls of one of these kinds were not played")
	}
	// A server sees the end of a connection a little later than the caller.
	for range 1000 {
		if l.Open() == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	gate.mu.Lock()
	defer gate.mu.Unlock()
	if l.Open() > 0 || gate.in != 0 {
		t.Errorf("%d connections are open, and the gate believes that %d calls have not left", l.Open(), gate.in)
	}
}
