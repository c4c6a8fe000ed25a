package rlqs

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// remote is a purse far away: each call takes a while.
type remote struct {
	purse
	inside, most atomic.Int32
}

func (r *remote) Decide(_ context.Context, now instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	r.most.Store(max(r.most.Load(), r.inside.Add(1)))
	defer r.inside.Add(-1)
	time.Sleep(15 * time.Millisecond)
	r.purse.Decide(context.Background(), now, asks, verdicts)
}

// Other goroutines have their turn while a message is handled that has thousands of reports.
func TestReportsTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	n, message := crowd(t, 1000)
	var turns atomic.Int32
	ctx, end := context.WithCancel(t.Context())
	defer end()
	go func() {
		for ; ctx.Err() == nil; turns.Add(1) {
			runtime.Gosched()
		}
	}()
	if err := n.NewSession().Reports(ctx, start, message); err != nil || turns.Load() < 1000/reportsATurn/2 {
		t.Errorf("%v, after %d turns of others in 1000 reports", err, turns.Load())
	}
}

// The debts of many streams that break at once are due at the same instant, the end of the window. They are settled
// by one goroutine, many in a call.
func TestDebtsAreSettledInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, buckets = 200, 3
		_, message := crowd(t, buckets)
		rules := rulesOf(t, strings.Replace(oneRule, "600", "999999", 1))
		begun := time.Now()
		clock := func() instant { return start.Add(time.Since(begun)) }
		limiter := &remote{purse: purse{left: 1 << 40, ends: start.Add(time.Minute), window: 1}}
		of := func() *config.Rules { return rules }
		n := NewNode(Source{Rules: of, Limiter: limiter, Wall: time.Now}, DefaultOptions())
		s := NewService(n, clock)
		var all []*exchange
		for range streams {
			e := &exchange{service: s, session: n.NewSession()}
			if err := e.session.Reports(t.Context(), clock(), message); err != nil {
				t.Fatal(err)
			}
			e.session.Answer(clock())
			all = append(all, e)
		}
		time.Sleep(time.Until(begun.Add(59 * time.Second)))
		granted, asks := n.stats.Granted.Load(), limiter.asks
		for _, e := range all { // none has acknowledged its leases
			e.close()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got, atOnce := n.stats.Carried.Load(), limiter.most.Load()
		if got != granted || limiter.asks-asks != streams*buckets || atOnce > 1 {
			t.Errorf("%d of %d tokens were charged to the next window, in %d asks, with %d calls at once", got, granted,
				limiter.asks-asks, atOnce)
		}
	})
}
