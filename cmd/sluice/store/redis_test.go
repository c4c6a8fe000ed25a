package store

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/table/tabletest"
)

func TestRedisTable(t *testing.T) {
	for name, args := range map[string][]string{
		"memory": {"--save", "", "--appendonly", "no"},
		"disk":   {"--appendonly", "yes", "--appendfsync", "always"},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t, args...)
			tabletest.Run(t, tabletest.Server{
				Open: func(t testing.TB) table.Store {
					c := s.Client()
					t.Cleanup(func() { _ = c.Close() })
					return newRedisFeed(c, "t:")
				},
				Restart: func() { s.Kill(); s.Run() },
				Lose:    func() { s.Do("FLUSHALL") },
			})
		})
	}
}

func TestRedisClusterTable(t *testing.T) {
	masters := redistest.Cluster(t, 3)
	tabletest.Run(t, tabletest.Server{Open: func(t testing.TB) table.Store {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{masters[0].Addr}})
		t.Cleanup(func() { _ = c.Close() })
		return newRedisFeed(c, "t:")
	}})
}

// switched is a client that finds another master.
type switched struct{ *redisFeed }

// A replica that lagged is promoted: it lacks a change, and has one that was replaced. Its nodes bring it up to date.
// So does a master that was a replica of another in between, under the same run.
func TestRedisTableAfterFailover(t *testing.T) {
	master, replica := redistest.Start(t), redistest.Start(t)
	host, port, _ := strings.Cut(master.Addr, ":")
	open := func(s *redistest.Server) *redisFeed {
		c := s.Client()
		t.Cleanup(func() { _ = c.Close() })
		return newRedisFeed(c, "t:")
	}
	store := &switched{open(master)}
	clock := func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) }
	n := table.NewNode(table.New(nil), store, clock, 1)
	beat := func() {
		t.Helper()
		for more, err := n.Step(t.Context()); more || err != nil; more, err = n.Step(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	set := func(key, value string) {
		t.Helper()
		if _, err := n.Set(t.Context(), table.Record{Key: key, Value: value}, table.Any); err != nil {
			t.Fatal(err)
		}
	}
	has := func(what string, s *redisFeed) {
		t.Helper()
		beat()
		p, err := s.Since(t.Context(), "", 0, 10)
		got := ""
		for _, r := range p.Records {
			got += r.Key + "=" + r.Value + " "
		}
		if err != nil || !strings.Contains(got, "ban=0 ") || !strings.Contains(got, "gone= ") {
			t.Errorf("%s the store has %s(%v)", what, got, err)
		}
	}
	beat()
	set("ban", "9")
	set("gone", "9")
	replica.Do("REPLICAOF", host, port)
	replica.UntilInfo("replication", "master_link_status:up")
	replica.Sever(master)
	set("ban", "0")
	set("gone", "")
	if _, err := open(replica).Since(t.Context(), "", 0, 10); err == nil {
		t.Error("a replica answers")
	}
	replica.Do("REPLICAOF", "NO", "ONE")
	store.redisFeed = open(replica)
	has("after a failover", store.redisFeed)

	store.redisFeed = open(master) // which has its run, and for a moment the data of another
	beat()
	other := redistest.Start(t)
	host, port, _ = strings.Cut(other.Addr, ":")
	master.Do("REPLICAOF", host, port)
	master.UntilInfo("replication", "master_link_status:up")
	master.Do("REPLICAOF", "NO", "ONE")
	has("after it was a replica", store.redisFeed)
}

// Recalls without a pause count as many answers, and not as one beyond the bounds.
func TestManyRecallsKeepTheSubscription(t *testing.T) {
	const messages, channel = 2 * mostReply / 64, "sluice:recalled:1"
	server := redistest.Start(t)
	f, pool := few, new(metrics.Pool)
	f.URL = server.Addr
	o, err := f.options(pool)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewUniversalClient(o)
	defer client.Close()
	ledger, err := account.NewRedis(client, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for subscribed := int64(0); subscribed == 0 && ctx.Err() == nil; {
			subscribed = client.PubSubNumSub(ctx, channel).Val()[channel]
		}
		server.Do("EVAL", "for _ = 1, ARGV[1] do redis.call('PUBLISH', ARGV[2], ARGV[3]) end return 1", 0, messages, channel, account.NameOf("", "key", 1))
	}()
	got := 0
	ledger.Recalls(ctx, 1, func(key string, _ ratelimit.Window) {
		if got++; got == messages || key == "" {
			cancel()
		}
	})
	if got != messages || pool.Refused.Load() != 0 {
		t.Errorf("of %d recalls %d arrive, and %d connections are closed", messages, got, pool.Refused.Load())
	}
}

// fed is the verdict on a stream that arrives in pieces.
func fed(stream string, piece int) error {
	r := replies{left: mostReply}
	for p := []byte(stream); len(p) > 0; {
		n := min(piece, len(p))
		r.feed(p[:n])
		p = p[n:]
	}
	return r.err
}

// Redis' answers pass under both protocols. Those that announce or hold more than the bounds do not.
func TestRepliesAreBounded(t *testing.T) {
	for stream, want := range map[string]string{
		"+OK\r\n-NOSCRIPT No matching script.\r\n+a\rb\r\n": "",
		"*4\r\n:0\r\n:-7\r\n$3\r\nabc\r\n$-1\r\n":           "",
		"$-1\r\n*-1\r\n_\r\n$0\r\n\r\n*0\r\n%0\r\n~0\r\n":   "",
		"%2\r\n+a\r\n~1\r\n,1.5\r\n#t\r\n(34928903284\r\n":  "",
		"=15\r\ntxt:Some string\r\n!3\r\nERR\r\n":           "",
		"+OK\r\n>2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n*2":   "",
		"$4\r\n\r\n$9\r\n:1\r\n":                            "", // a length in a string is none
		"$99999999999\r\n":                                  "a string of",
		"$" + strings.Repeat("9", 30) + "\r\n":              "a string of",
		"=4194304\r\n":                                      "a string of",
		"!99999999\r\n":                                     "a string of",
		"$-2\r\n":                                           "a string of",
		"$?\r\n":                                            "a string of",
		"*2000000000\r\n":                                   "elements",
		"%131073\r\n":                                       "elements",
		"~262145\r\n":                                       "elements",
		">262145\r\n":                                       "elements",
		strings.Repeat("*100000\r\n", 3):                    "elements",
		"%-1\r\n":                                           "elements",
		"*\r\n":                                             "elements",
		"+" + strings.Repeat("x", mostLine):                 "a line of more than",
		"+OK\n" + strings.Repeat("+OK\n", mostLine):         "a line of more than",
		strings.Repeat("+a\r\n", mostReply/4+1):             "more than",
		"|0\r\n":                                            "the type", ";4\r\n": "the type", ".\r\n": "the type", "HTTP/1.1 400 Bad Request\r\n": "the type",
		"$2\r\nabc\r\n\r\n": "the type", "\r\n": "the line", "$0\r\n\r\n\r\n": "the line",
	} {
		for _, piece := range []int{1, 7, 1 << 30} {
			err := fed(stream, piece)
			if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want) && errors.Is(err, errReply) {
				continue
			}
			t.Errorf("%.60q in pieces of %d: %v, want %q", stream, piece, err, want)
		}
	}
}

// The pieces in which answers arrive change no verdict.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{"*2\r\n$3\r\nabc\r\n:1\r\n", "%1\r\n+a\r\n$9999999\r\n", "+a\r\n$1\r\nab\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		whole := fed(s, len(s)+1)
		for _, piece := range []int{1, 2, 5} {
			if err := fed(s, piece); (err == nil) != (whole == nil) || err != nil && err.Error() != whole.Error() {
				t.Errorf("in pieces of %d: %v, as a whole: %v", piece, err, whole)
			}
		}
	})
}

// A connection with a bad answer gives its reader none of it, ends, and is counted once. A command has answers be
// counted anew.
func TestBadRepliesEndConnections(t *testing.T) {
	server, client := net.Pipe()
	pool := new(metrics.Pool)
	c, err := bounded(func(context.Context, string, string) (net.Conn, error) { return client, nil }, pool)(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	half := "$3000000\r\n" + strings.Repeat("x", 3_000_000) + "\r\n"
	go func() {
		command := make([]byte, 1)
		for _, answer := range []string{half, half, half + half} {
			_, _ = io.ReadFull(server, command)
			_, _ = io.WriteString(server, answer)
		}
	}()
	got := make([]byte, len(half))
	for range 2 {
		if _, err := c.Write([]byte("c")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, got); err != nil || string(got) != half {
			t.Fatalf("an answer within the bounds ends with %v", err)
		}
	}
	if _, err := c.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, c)
	if n > int64(len(half)) || !errors.Is(err, errReply) {
		t.Errorf("%d bytes of a long answer are read, and then %v", n, err)
	}
	_, again := c.Read(got)
	_ = c.Close()
	if !errors.Is(again, errReply) || pool.Refused.Load() != 1 || pool.Open.Load() != 0 || pool.Made.Load() != 1 || pool.Closed.Load() != 1 {
		t.Errorf("then %v, with the pool %+v", again, pool)
	}
}

func TestRepliesAllocateNothing(t *testing.T) {
	r := replies{left: mostReply}
	answer := []byte("*3\r\n:17\r\n$3\r\nabc\r\n+OK\r\n")
	if n := testing.AllocsPerRun(100, func() {
		r.left, r.elements = mostReply, 0
		r.feed(answer)
	}); n > 0 || r.err != nil {
		t.Errorf("an answer allocates %v times (%v)", n, r.err)
	}
}
