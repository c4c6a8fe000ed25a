package console

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// overriding keeps overrides where the store may be away, or slow.
type overriding struct {
	*table.Alone
	down error
	// Set says that it has begun, and waits for hold; nil: neither.
	began, hold chan struct{}
}

func (o *overriding) Set(ctx context.Context, r table.Record, expected table.Expected) (table.Record, error) {
	if o.hold != nil {
		o.began <- struct{}{}
		<-o.hold
	}
	if o.down != nil {
		return table.Record{}, o.down
	}
	return o.Alone.Set(ctx, r, expected)
}

// resetting is a limiter whose store may be away.
type resetting struct {
	*overrides.Limiter
	*overriding
}

func (r resetting) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	return cmp.Or(r.down, r.Limiter.Reset(ctx, now, a))
}

// overridable is a node's console with the rules of testdata/rules.
type overridable struct {
	*testing.T
	*overriding
	http.Handler
	book    *overrides.Book
	files   config.Static
	console *console
	changes *metrics.OverrideChanges
	log     bytes.Buffer
}

func newOverridable(t *testing.T) *overridable {
	files, err := (&config.Tree{Path: "testdata/rules"}).Read()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	store := config.NewStore(config.Static(files), config.Options{Coordination: ratelimit.DefaultCoordination()}, log)
	if err := store.Load(); err != nil {
		t.Fatal(err)
	}
	wall := time.Unix(1_700_000_000, 0)
	at := func(ratelimit.Instant) ratelimit.LedgerTime { return ratelimit.LedgerTime(wall.UnixMicro()) }
	records := overrides.NewTable()
	n := &overridable{
		T: t, overriding: &overriding{Alone: &table.Alone{
			Table: records, Wall: func() time.Time { return wall }, Clock: ratelimit.MonotonicClock(),
		}},
		files: files, changes: new(metrics.OverrideChanges),
	}
	n.book = &overrides.Book{Table: records, Keeper: n.overriding, Now: func() ratelimit.LedgerTime { return at(0) }}
	base := overrides.NewLimiter(local.New(100, 1, wall), records, at)
	mux := http.NewServeMux()
	n.console = newConsole(Source{
		Inspector: resetting{base, n.overriding},
		Metrics: metrics.Collector{
			Store: store, Overrides: n.changes, Limiter: func() (s ratelimit.LimiterStats) { return s },
		},
		Clock: func() ratelimit.Instant { return 1 }, Token: "hunter2",
		Quotas: rlqs.NewNode(rlqs.Source{}, rlqs.Options{}), Nodes: func() (f Fleet) { return f },
		Name: func() string { return "" }, History: NewHistory(metrics.Collector{}, nil, noFleet),
		Overrides: n.book, Log: slog.New(slog.NewTextHandler(&n.log, nil)),
	})
	n.console.register(mux)
	n.Handler = mux
	return n
}

// do asks with the token. Headers are "Name: value".
func (n *overridable) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	n.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer hunter2")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	n.ServeHTTP(w, r)
	return w
}

// must sends a request, and requires a status and a part of the answer.
func (n *overridable) must(code int, part, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	n.Helper()
	w := n.do(method, path, body, headers...)
	if w.Code != code || !strings.Contains(w.Body.String(), part) {
		n.Errorf("%s %s %s %v is answered %d %s, must be %d with %q", method, path, body, headers, w.Code, w.Body,
			code, part)
	}
	return w
}

const alice = "/v1/overrides/edge?api_key=alice"

func noFleet() Fleet { return Fleet{} }
