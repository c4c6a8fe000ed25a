package transport

import (
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Who holds most for longer than a moment goes first: the young stay, however much they hold, as long as the others
// hold an eighth. A few calls that a busy node has made wait are not what fills a budget: who does is ended, though he
// has begun just now.
func TestHeaviestIsWhoFillsTheBudget(t *testing.T) {
	type body struct {
		kilobytes int64
		old, ends bool
	}
	for name, c := range map[string]struct {
		bodies []body
		more   int64
	}{
		"the old hold much":   {[]body{{600, false, false}, {130, true, false}, {270, true, true}}, 1},
		"much more is needed": {[]body{{600, false, true}, {130, true, true}}, 700},
		"the old hold little": {[]body{{100, true, false}, {900, false, true}}, 1},
	} {
		b := NewBudget(1000 << 10)
		left, ended := c.more<<10, uint64(0)
		var all []*Body
		for _, x := range c.bodies {
			v := b.Body(func() { ended++ })
			if x.old {
				v.since -= int64(2 * moment)
			}
			v.Grow(x.kilobytes<<10 - bodyCost)
			all = append(all, v)
		}
		b.charge(c.more << 10)
		for i, x := range c.bodies {
			if all[i].Ended() != x.ends || all[i].Grow(0) == x.ends {
				t.Errorf("%s: %+v has ended: %t", name, x, all[i].Ended())
			}
			if !x.ends {
				left += x.kilobytes << 10
			}
		}
		if b.Held() != left || b.Heaviest.Load() != ended {
			t.Errorf("%s: %d bytes are held, must be %d; %d of %d are counted", name, b.Held(), left, b.Heaviest.Load(),
				ended)
		}
		for _, v := range all {
			v.Close()
		}
		if b.Held() != c.more<<10 {
			t.Errorf("%s: when all bodies are closed, %d bytes are held", name, b.Held())
		}
	}
	var none *Budget
	if v := none.Body(func() {}); !v.Grow(1 << 40) {
		t.Error("without a budget there is a bound")
	}
}

// A caller that holds little does not end for others that grow while the heaviest ends.
func TestLightHoldersOutlastThoseThatGrow(t *testing.T) {
	b := NewBudget(1000 << 10)
	light, next := b.Body(func() {}), b.Body(func() {})
	heavy := b.Body(func() { // its end lets another take as much
		next.bytes += 800 << 10
		b.held.Add(800 << 10)
	})
	heavy.Grow(800<<10 - bodyCost)
	b.charge(200 << 10)
	if !heavy.Ended() || !next.Ended() || light.Ended() {
		t.Errorf("ended: the heaviest %t, one that grew %t, a light one %t", heavy.Ended(), next.Ended(), light.Ended())
	}
}

// Streams that are begun and reset do not add up to more handlers than a connection may have calls.
func TestResetCallsKeepTheirPlaceUntilTheirHandlerEnds(t *testing.T) {
	var running, most atomic.Int32
	o := others(func(grpc.ServerStream) error {
		most.Store(max(most.Load(), running.Add(1)))
		time.Sleep(time.Second) // as one that does not look at its context
		running.Add(-1)
		return nil
	})
	o.Caps.Streams = 10
	played(t, o, &slow{}, func(t *testing.T, s *script, p *Port) {
		_ = s.WriteSettingsAck()
		for i := range uint32(500) {
			s.head(2*i+1, false, ordinary("/x/Other")...)
			_ = s.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}
		s.outcome()
		if n := most.Load(); n > 10 {
			t.Errorf("%d handlers ran at once, of a connection with %d calls", n, o.Caps.Streams)
		}
		if p.Budget.Held() < int64(running.Load())*exchangeCost {
			t.Errorf("%d bytes are held for %d handlers", p.Budget.Held(), running.Load())
		}
		time.Sleep(2 * time.Second)
		if p.Budget.Held() != 0 {
			t.Errorf("%d bytes are held", p.Budget.Held())
		}
		s.call(1001, "/x/Other", "a")
		if s.outcome(); s.became[1001] != "" {
			t.Errorf("a later call: %s", s.became[1001])
		}
	})
}

// What handlers hold whose calls have ended counts until they find that. It keeps a connection from having more than
// one call of services, and no rate limit call.
func TestEndedHandlersCount(t *testing.T) {
	var goOn chan struct{}
	o := others(func(grpc.ServerStream) error { <-goOn; return nil })
	o.Budget = NewBudget(1 << 20)
	played(t, o, &slow{}, func(t *testing.T, first *script, p *Port) {
		goOn = make(chan struct{}) // of this bubble
		second := newScript(greeted(p))
		const calls = 1 << 20 / 8 / exchangeCost
		for i := range uint32(calls + 1) {
			first.call(2*i+1, "/x/Other", "a")
		}
		first.outcome()
		first.Close()
		synctest.Wait()
		for id, method := range []string{0: "/x/Other", 1: "/x/Other", 2: "/x/Echo"} {
			second.call(2*uint32(id)+1, method, "a")
		}
		if got := second.outcome(3, 5); got != "3: status 8, 5: status 0" {
			t.Error(got)
		}
		close(goOn)
		synctest.Wait()
		if held := p.Budget.Held(); held > 0 {
			t.Errorf("%d bytes are held when the handlers have ended", held)
		}
		second.call(7, "/x/Other", "a")
		if got := second.outcome(1, 7); got != "1: status 0, 3: status 8, 5: status 0, 7: status 0" {
			t.Error(got)
		}
		second.Close()
	})
}

// What the handler's own gRPC keeps of a request counts, in however small pieces it comes.
func TestSmallPiecesCount(t *testing.T) {
	o := echoes(NewBudget(16 << 20))
	p := NewPort(o)
	s := newScript(greeted(p))
	s.head(1, false, ordinary("/x/Other")...)
	all := text(string(make([]byte, 200<<10)))
	grew := grown(func() {
		for ; len(all) > 64; all = all[32:] { // each is read on its own
			if s.WriteData(1, false, all[:32]) != nil {
				break // it was ended
			}
		}
	})
	if grew > 32<<20 {
		t.Errorf("of a budget of 16 MB, which counts %d KB, the heap grew by %d KB", o.Budget.Held()>>10, grew>>10)
	}
	s.Close()
	p.running.Wait()
}

// A connection that had a large frame, and has begun a small one, keeps no room for another large one.
func TestBeginningsOfFramesKeepLittle(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	c := newConnection(NewPort(Options{}), ours, ours, nil)
	large := appendFrame(nil, 0xee, 0, 0, make([]byte, mostFrame)) // an extension
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	go func() {
		_, _ = theirs.Write(appendSettings(nil))
		for ; len(large) > 1; large = large[1:] {
			_, _ = theirs.Write(large[:1])
		}
		_, _ = theirs.Write(append(large, 0, 0))
		_, _ = theirs.Write([]byte{9})
	}()
	for most := 0; len(c.in.rest) != 3 || most < mostFrame; most = max(most, len(c.in.rest)) {
		if err := c.read(); err != nil {
			t.Fatal(err)
		}
	}
	if got := cap(c.in.batch); got > 2*smallBytes {
		t.Errorf("for 3 bytes, it keeps %d", got)
	}
}

// What is written to a caller that does not read counts, also what answers no open call. For a few bytes of a header
// block, the answer can have a name that is sixty times as long. After a moment, such a caller ends before others.
func TestUnreadAnswersCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := NewPort(echoes(NewBudget(16 << 20)))
		here, there := net.Pipe()
		written := &slow{Conn: there}
		p.running.Go(func() { p.welcome(written) })
		b := append([]byte(http2.ClientPreface), appendSettings(nil)...)
		caller, path := newScript(discards{}), "/"+strings.Repeat("\U000e0001", 100)
		for id := uint32(1); len(b) < smallBytes-100; id += 2 {
			b = appendHeaders(b, flagEndStream, id, caller.block(ordinary(path)...))
		}
		go func() { _, _ = io.CopyN(io.Discard, here, frameHeader+3*6+frameHeader+4) }()
		_, _ = here.Write(b)
		synctest.Wait()
		if held, size := p.Budget.Held(), written.last.Load(); size < 20*smallBytes || held != size {
			t.Errorf("%d bytes wait to be written, %d are held", size, held)
		}
		for c := range p.open {
			time.Sleep(moment)
			if _, long := c.holds(nanotime() - int64(moment)); long != written.last.Load() {
				t.Errorf("%d bytes are held for long", long)
			}
		}
		here.Close()
		p.GracefulStop()
		if held := p.Budget.Held(); held != 0 {
			t.Errorf("%d bytes are held when all has ended", held)
		}
	})
}

// Talks that wait keep no room of the messages that they have had: they may be as many as callers open.
func TestWaitingTalksKeepLittle(t *testing.T) {
	const size, talks = 30 << 10, 400
	s := connected(t, NewPort(others(converse(nil))),
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = s.WriteWindowUpdate(0, 1<<30)
	message := text(strings.Repeat("a", size))
	grew := grown(func() {
		for id := uint32(1); id < 2*talks; id += 2 {
			s.head(id, false, ordinary("/x/Other")...)
			_ = s.WriteData(id, false, message[:mostFrame])
			_ = s.WriteData(id, false, message[mostFrame:])
			s.await(func() bool { return len(s.bodies[id]) == len(message) })
			s.mu.Lock()
			delete(s.bodies, id)
			s.mu.Unlock()
		}
	})
	if each := grew / talks; each > 2*talkCost {
		t.Errorf("each talk keeps %d bytes, and counts %d", each, talkCost)
	}
	runtime.KeepAlive(s)
}

// converse is a handler that answers each message with itself. It tells of its Talk, which has receipts.
func converse(talks chan<- *Talk) func(grpc.ServerStream) error {
	return func(stream grpc.ServerStream) error {
		talk, _ := Converse(stream.Context())
		if talks != nil {
			talk.Receipts()
			talks <- talk
		}
		for {
			var m []byte
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			talk.Received()
			if err := stream.SendMsg(&m); err != nil {
				return err
			}
		}
	}
}

// Each message is acknowledged when its caller has read it, and not sooner, for any size, and with any other
// traffic on the connection. What looks like the answer to a ping, and is none, acknowledges nothing.
func TestTalk(t *testing.T) {
	var talks chan *Talk
	o := others(func(stream grpc.ServerStream) error { return converse(talks)(stream) })
	played(t, o, &slow{}, func(t *testing.T, s *script, p *Port) {
		talks = make(chan *Talk, 100) // of this bubble
		s.windows(1 << 20)
		_ = s.WriteWindowUpdate(0, 1<<30)
		large := text(strings.Repeat("a", 40_000))
		var all []*Talk
		exchange := func(i int) {
			for rest := large; len(rest) > 0; rest = rest[min(len(rest), mostFrame):] {
				_ = s.WriteData(uint32(2*i+1), false, rest[:min(len(rest), mostFrame)])
			}
			synctest.Wait()
		}
		for i := range uint32(3) {
			s.head(2*i+1, false, ordinary("/x/Other")...)
			all = append(all, <-talks)
		}
		for n, i := range []int{0, 1, 0, 2, 0, 1} {
			exchange(i)
			<-all[i].Receipts()
			if got, want := all[i].Acked(), uint64([]int{1, 1, 2, 1, 3, 2}[n]); got != want {
				t.Fatalf("stream %d: %d messages are acknowledged, want %d", i, got, want)
			}
		}
		if held := p.Budget.Held(); held != 3*talkCost {
			t.Errorf("three talks hold %d bytes, want %d each", held, talkCost)
		}
		goOn := s.stands() // and its kernel reads what comes
		exchange(1)
		for _, data := range [][8]byte{{}, {0x5b, 'q', 'u', 'x', 0, 0, 0, 7}, {0x5b, 'q', 'u', 'o', 0, 0, 0, 8}} {
			_ = s.WritePing(true, data)
		}
		s.outcome()
		synctest.Wait()
		if got := all[1].Acked(); got != 2 || len(all[1].Receipts()) > 0 {
			t.Errorf("a caller that does not read has acknowledged %d messages of 3", got)
		}
		goOn()
		<-all[1].Receipts()
		if got := all[1].Acked(); got != 3 {
			t.Errorf("%d messages are acknowledged, want 3", got)
		}
		goOn = s.stands()
		for id := uint32(7); id < 200; id += 2 {
			s.head(id, false, ordinary("/x/Other")...)
			_ = s.WriteData(id, false, text("a"))
			synctest.Wait()
			_ = s.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		s.outcome()
		for c := range p.open {
			if n := len(c.receipts.wait); n > 0 {
				t.Errorf("%d receipts are kept of talks that have ended", n)
			}
		}
		goOn()
	})
}

// Received reports whether a message came before the server read it.
func TestTalkSaysWhatWaits(t *testing.T) {
	var goOn chan struct{}
	var said []bool
	o := others(func(stream grpc.ServerStream) error {
		talk, _ := Converse(stream.Context())
		for range 2 {
			var m []byte
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			<-goOn
			said = append(said, talk.Received())
		}
		return nil
	})
	played(t, o, &slow{}, func(t *testing.T, s *script, _ *Port) {
		goOn = make(chan struct{}) // of this bubble
		s.head(1, false, ordinary("/x/Other")...)
		_ = s.WriteData(1, false, append(text("a"), text(strings.Repeat("b", 9000))...))
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		if want := []bool{true, false}; !slices.Equal(said, want) {
			t.Errorf("after each of two messages it says that more waits: %v, want %v", said, want)
		}
	})
}

// A message of the largest size finds a window, though it comes behind a small one.
func TestTalksHaveRoomForTheLargestMessage(t *testing.T) {
	conn := client(t, others(converse(nil)), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bareCodec{})))
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/x/Other")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{60 << 10, 250 << 10, 60 << 10, 250 << 10} {
		sent, got := make([]byte, size), []byte(nil)
		if err := stream.SendMsg(&sent); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(&got); err != nil || len(got) != size {
			t.Fatalf("%d bytes of %d: %v", len(got), size, err)
		}
	}
}

// A Talk can be ended while its handler waits, and its caller gets the handler's answer.
func TestTalksEnd(t *testing.T) {
	s := connected(t, NewPort(others(func(stream grpc.ServerStream) error {
		talk, _ := Converse(stream.Context())
		talk.End()
		if err := stream.RecvMsg(new([]byte)); status.Code(err) != codes.Canceled {
			return err
		}
		return status.Error(codes.OutOfRange, "")
	})))
	s.head(1, false, ordinary("/x/Other")...)
	if got := s.outcome(1); got != "1: status 11" {
		t.Error(got)
	}
}
