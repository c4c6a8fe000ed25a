package transport

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
)

// What becomes of frames is as with grpc-go on each port, where testdata/frames.txt does not say otherwise. A line is a
// name and what a caller says; below, what becomes of its streams, of which 0 is the connection.
func TestFramesEndAsWithGRPC(t *testing.T) {
	caps := usual
	caps.Streams = 10
	oracle := grpc.NewServer(grpc.ForceServerCodecV2(bareCodec{}), grpc.MaxRecvMsgSize(caps.MessageBytes),
		grpc.MaxConcurrentStreams(caps.Streams), grpc.MaxHeaderListSize(caps.HeaderBytes))
	streams{}.register(oracle)
	servers, addr := map[string]server{"grpc-go": oracle}, map[string]string{}
	for name, change := range variants {
		o := echoes(NewBudget(64 << 20)) // for all lines at once: a call of a handler counts 32 KB
		o.Caps = caps
		change(t, &o)
		servers[name] = NewPort(o)
	}
	for name, s := range servers {
		addr[name] = serve(t, s)
	}
	datadriven.RunTest(t, "testdata/frames.txt", func(t *testing.T, in *datadriven.TestData) string {
		lines := strings.Split(in.Input, "\n")
		said := make([]string, len(lines))
		var all sync.WaitGroup
		for i, line := range lines {
			all.Go(func() {
				name, frames, _ := strings.Cut(line, ": ")
				got := map[string]string{}
				for who, server := range servers {
					s := dialed(t, addr[who], server)
					_ = s.says(frames)
					got[who] = s.outcome()
					s.Close()
				}
				ours := got["callers' port"]
				for who, is := range got {
					if is != ours && who != "grpc-go" {
						t.Errorf("%s: %q at the callers' port, and %q at the %s", line, ours, is, who)
					}
				}
				if said[i] = name + ": " + ours; got["grpc-go"] != ours {
					said[i] += "; grpc-go: " + got["grpc-go"]
				}
			})
		}
		all.Wait()
		return strings.Join(said, "\n") + "\n"
	})
}

var histories = flag.Int("histories", 300, "how many histories to play")

// told is a call of a history.
type told struct {
	request, left []byte // the message, and what of it is not sent
	handler       bool   // a handler answers it
	hasty, reset  bool
}

// holds is the least that a call holds which waits for its caller, or for a window behind so many bytes of its answer.
func (c *told) holds(answered int) int {
	size := len(c.request) - messagePrefix
	switch {
	case c.handler && len(c.left) > 0:
		return exchangeCost + len(c.request) - len(c.left)
	case c.handler:
		return exchangeCost + size + len(c.request) - answered
	case len(c.left) > 0:
		return streamCost + len(c.request) - len(c.left)
	case size >= largeRequest:
		return streamCost + waitCost + size + len(c.request) - answered
	case size > 0 && c.request[messagePrefix] > 0: // its decision waits, and the request lies in what was read
		return streamCost + waitCost + len(c.request) - answered
	}
	return streamCost + len(c.request) - answered
}

// Random callers in virtual time: their calls are in pieces, wait, are reset, find no window, and their connection is
// slow, closes, or is drained. Each call that is whole gets its own answer, unless it began after the drain's last one.
// What waits is held, and outside the gate. When all has ended, nothing is held.
func TestHistories(t *testing.T) {
	// answerLate answers with the request, after as many milliseconds as its first byte says.
	answerLate := func(ctx context.Context, in, out []byte) ([]byte, error) {
		out = append(out, in...)
		if len(in) == 0 || in[0] == 0 {
			return out, nil
		}
		wait := time.Duration(in[0]) * time.Millisecond
		ratelimit.Waits(ctx) // from now on, what is in is another's
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-time.After(wait):
		}
		return out, nil
	}
	for seed := range uint64(*histories) {
		r := rand.New(rand.NewPCG(seed, 0))
		some := func(of time.Duration) time.Duration { return time.Duration(r.Int64N(int64(of))) }
		o, gate := echoes(NewBudget(16<<20)), &inside{}
		o.Gate, o.Methods[0].Answer = gated(gate), answerLate
		as := &slow{before: some(5 * time.Millisecond), after: some(5 * time.Millisecond)}
		const closes, drains = 0, 1
		end := r.IntN(4)
		if end == drains {
			as.before = some(100 * time.Millisecond)
		}
		failf := func(format string, args ...any) {
			t.Helper()
			t.Errorf("history %d: %s", seed, fmt.Sprintf(format, args...))
		}
		played(t, o, as, func(_ *testing.T, s *script, p *Port) {
			all := map[uint32]*told{}
			sends := func(id uint32, n int) {
				c := all[id]
				n = min(n, len(c.left))
				_ = s.WriteDataPadded(id, n == len(c.left), c.left[:n], make([]byte, r.IntN(20)))
				c.left = c.left[n:]
			}
			begins := func() {
				id, size := uint32(2*len(all)+1), []int{0, 1, 100, 5000, 20_000}[r.IntN(5)]
				content := bytes.Repeat([]byte{byte(r.IntN(4) * r.IntN(60))}, size)
				c := &told{request: text(string(content)), handler: r.IntN(2) == 0}
				c.left, c.hasty, all[id] = c.request, r.IntN(4) == 0, c
				fields := ordinary("/x/Echo")
				if c.handler {
					fields = ordinary("/x/Other")
				}
				if c.hasty {
					fields = append(fields, "grpc-timeout", []string{"50m", "100m"}[r.IntN(2)])
				}
				_ = s.WriteHeaders(http2.HeadersFrameParam{
					StreamID: id, BlockFragment: s.block(fields...), EndHeaders: true, PadLength: uint8(r.IntN(9)),
					Priority: http2.PriorityParam{Weight: uint8(r.IntN(2))},
				})
			}
			begins()
			for steps := 20 + r.IntN(100); steps > 0; steps-- {
				id := uint32(2*r.IntN(len(all)) + 1)
				c := all[id]
				switch event := r.IntN(32); {
				case event < 8:
					begins()
				case event < 16 && !c.reset && len(c.left) > 0:
					sends(id, 1+r.IntN(16_000))
				case event == 16:
					c.reset = true
					_ = s.WriteRSTStream(id, http2.ErrCodeCancel)
				case event < 20 && !c.reset:
					_ = s.WriteWindowUpdate(id, uint32(1+r.IntN(9000)))
				case event < 24:
					s.windows([]uint32{0, 10, 65_535}[r.IntN(3)])
				case event < 28:
					time.Sleep(some(20 * time.Millisecond))
				}
				if steps == 10 && end == closes {
					s.Close()
					return
				}
				if steps == 10 && end == drains {
					go p.GracefulStop()
				}
			}
			time.Sleep(time.Second) // now all wait for windows, or for their caller
			synctest.Wait()
			s.mu.Lock()
			waits := 0
			for id, c := range all {
				if !c.reset && s.became[id] == "" {
					waits += c.holds(len(s.bodies[id]))
				}
			}
			s.mu.Unlock()
			if held := int(o.Budget.Held()); end != drains && held < waits {
				failf("calls that wait hold %d bytes, and %d are counted", waits, held)
			}
			if gate.calls != 0 || gate.callers != 0 {
				failf("%d calls of %d callers that wait are inside the gate", gate.calls, gate.callers)
			}
			if end == drains {
				time.Sleep(lastCalls)
			}
			opens := []func(){func() { s.windows(1 << 20) }, func() { _ = s.WriteWindowUpdate(0, 1<<24) }}
			first := r.IntN(2)
			opens[first]()
			opens[1-first]()
			for id, c := range all {
				for !c.reset && len(c.left) > 0 {
					sends(id, 16_000)
				}
			}
			if end == drains {
				s.await(func() bool { return false }) // it ends
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			last := uint32(1<<31 - 1)
			for _, away := range s.away {
				if away > last {
					failf("the last streams rise: %v", s.away)
				}
				last = away
			}
			for id, c := range all {
				right := s.became[id] == "status 0" && bytes.Equal(s.bodies[id], c.request)
				right = right || c.hasty && s.became[id] == "status 4"
				if !c.reset && !right && id <= last {
					failf("call %d became %q, with %d bytes of %d", id, s.became[id], len(s.bodies[id]), len(c.request))
				}
			}
		})
		if gate.calls != 0 || gate.callers != 0 || o.Budget.Held() != 0 {
			failf("at the end, %d calls of %d callers are inside, and %d bytes held", gate.calls, gate.callers,
				o.Budget.Held())
		}
		if t.Failed() {
			return
		}
	}
}

// Nonsense ends a connection, and nothing else.
func FuzzPort(f *testing.F) {
	names := slices.Sorted(maps.Keys(variants))
	f.Add([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
	f.Add(appendHeaders(nil, 0, 1, []byte{0x83, 0x86}))
	f.Add(append(appendHeaders(nil, 0, 1, []byte{0x83}), appendFrame(nil, frameData, 1, 1, make([]byte, 9))...))
	f.Add(append([]byte{0, 0, 4, 8, 0, 0, 0, 0, 0}, 0x7f, 0xff, 0xff, 0xff))
	f.Add(append([]byte{2}, appendHeaders(appendSettings(nil), flagEndStream, 1, []byte{0x83, 0x86, 4, 0})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := echoes(NewBudget(1 << 20))
		if len(b) > 0 {
			variants[names[int(b[0])%len(names)]](t, &o)
			b = b[1:]
		}
		o.Security = nil // of TLS, Go has targets
		o.Bug = func(bug any) { panic(bug) }
		p := NewPort(o)
		here := greeted(p)
		go func() { _, _ = io.Copy(io.Discard, here) }()
		_ = here.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(here, http2.ClientPreface)
		_, _ = here.Write(b)
		here.Close()
		p.running.Wait()
		if held := p.Budget.Held(); held != 0 {
			t.Fatalf("%d bytes are held", held)
		}
	})
}

var h2spec = flag.Bool("h2spec", false, "whether h2spec plays its cases against a port; make h2spec")

// A port speaks HTTP/2 as the cases of h2spec ask, except those that testdata/h2spec.txt lists, with the reasons.
func TestH2Spec(t *testing.T) {
	if !*h2spec {
		t.Skip("make h2spec runs it")
	}
	_, port, _ := net.SplitHostPort(serve(t, NewPort(echoes(NewBudget(1<<20)))))
	report := filepath.Join(t.TempDir(), "report.xml")
	// Its exit code is that of a failure, for there are some.
	play := exec.Command("go", "tool", "-modfile=../../tools.mod", "h2spec", "-p", port, "-o", "1", "-j", report)
	out, _ := play.CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var all struct {
		Cases []struct {
			Package string `xml:"package,attr"`
			Name    string `xml:"classname,attr"`
			Failure string `xml:"failure"`
			Error   string `xml:"error"`
		} `xml:"testsuite>testcase"`
	}
	listed, err := os.ReadFile("testdata/h2spec.txt")
	if err := errors.Join(err, xml.Unmarshal(text, &all)); err != nil {
		t.Fatal(err)
	}
	known, failed := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(listed)) {
		if name := strings.TrimSpace(line); name != "" && name[0] != '#' {
			known[name] = true
		}
	}
	for _, c := range all.Cases {
		if c.Failure+c.Error != "" {
			failed[c.Package+": "+c.Name] = true
		}
	}
	if diff := cmp.Diff(known, failed); diff != "" || len(all.Cases) < 100 {
		t.Errorf("of %d cases, these fail: -listed +failed\n%s", len(all.Cases), diff)
	}
}
