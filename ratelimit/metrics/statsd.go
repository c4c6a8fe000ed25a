package metrics

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Statsd sends the counters of a Collector to a statsd server over TCP, as increments since the last time
// ("name:increment|c" lines), and its gauges as values ("name:value|g"). The names are those of
// envoyproxy/ratelimit. Decisions cost no more with it.
//
// After an outage, the server gets the increments that it missed, because only the counters are kept. If a
// connection breaks while lines are under way, their increments may be lost or counted twice.
type Statsd struct {
	Addr     string            // host:port
	Interval time.Duration     // between two times
	Tags     map[string]string // EXTRA_TAGS
	Counters func(each func(name string, n uint64))
	Gauges   func(each func(name string, value uint64))
	Latency  *Latency // sent as the mean in ms
	// OnError is called when the server cannot be reached. It must not block.
	OnError func(error)

	suffix string
	sent   map[string]uint64
	calls  uint64  // of Latency, when it was last sent
	took   float64 // in the unit of Latency
	conn   net.Conn
	gone   chan struct{} // closed when the server has closed conn
}

// statsdTimeout bounds the dial, and then the write, so that a server that hangs delays the end of the node by four
// seconds at most.
const statsdTimeout = 2 * time.Second

// Run sends until ctx is done, and then once more. It blocks. One goroutine calls it, so its fields need no lock.
func (s *Statsd) Run(ctx context.Context) {
	s.sent, s.suffix = map[string]uint64{}, tagSuffix(s.Tags)
	tick := time.NewTicker(s.Interval)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-ctx.Done():
			last = true
		case <-tick.C:
		}
		if err := s.flush(); err != nil {
			s.OnError(fmt.Errorf("statsd at %s: %w", s.Addr, err))
		}
	}
	s.close()
}

// tagSuffix is the suffix of each name. Example: .__env=prod.__zone=eu, in the order of names. This is the form of
// envoyproxy/ratelimit's statsd library.
func tagSuffix(tags map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		fmt.Fprintf(&b, ".__%s=%s", segment(k), strings.ReplaceAll(segment(tags[k]), ".", "_"))
	}
	return b.String()
}

// flush sends what has changed. sent, calls and took change only after a send without an error. So the next increments
// include those that failed.
func (s *Statsd) flush() error {
	var lines bytes.Buffer
	now := make(map[string]uint64, len(s.sent))
	s.Counters(func(name string, n uint64) {
		now[name] += n // two rules may have one name
	})
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if now[name] > s.sent[name] {
			fmt.Fprintf(&lines, "%s%s:%d|c\n", name, s.suffix, now[name]-s.sent[name])
		}
	}
	s.Gauges(func(name string, value uint64) { fmt.Fprintf(&lines, "%s%s:%d|g\n", name, s.suffix, value) })
	// Names without an increment send nothing, as statsd expects. Gauges are sent each time.
	calls, took := s.latency(&lines)
	if lines.Len() > 0 {
		if err := s.write(lines.Bytes()); err != nil {
			return err
		}
	}
	s.sent = now
	s.calls = calls
	s.took = took
	return nil
}

// latency writes the mean of the calls since the last send. It returns the totals for the next one.
func (s *Statsd) latency(lines io.Writer) (calls uint64, took float64) {
	var m dto.Metric
	if err := s.Latency.Write(&m); err != nil {
		return s.calls, s.took
	}
	calls, took = m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
	if calls > s.calls {
		fmt.Fprintf(lines, "ratelimit_server.%s.response_time%s:%.3f|ms\n", method, s.suffix,
			1e3*s.Latency.Seconds(took-s.took)/float64(calls-s.calls))
	}
	return calls, took
}

func (s *Statsd) write(lines []byte) error {
	if s.conn != nil {
		select {
		case <-s.gone:
			s.close()
		default:
		}
	}
	if s.conn == nil {
		dialer := net.Dialer{Timeout: statsdTimeout}
		conn, err := dialer.DialContext(context.Background(), "tcp", s.Addr) // also at the end, when there is no other
		if err != nil {
			return err
		}
		s.conn, s.gone = conn, make(chan struct{})
		gone := s.gone
		go func() { // it says nothing, but when it goes that is read
			defer close(gone)
			_, _ = io.Copy(io.Discard, conn)
		}()
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(statsdTimeout))
	if _, err := s.conn.Write(lines); err != nil {
		s.close()
		return err
	}
	return nil
}

func (s *Statsd) close() {
	if s.conn != nil {
		_ = s.conn.Close()
		<-s.gone
		s.conn = nil
	}
}
