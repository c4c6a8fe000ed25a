package ledger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// How many units a claim draws: what waits, or else what is wanted, but no more than an eighth of the limit; a unit
// at least; and no less than what was spent unasked and what waits besides.
func TestUnitsOfADraw(t *testing.T) {
	minute := func(n tokens) ratelimit.Limit { return ratelimit.Limit{Unit: ratelimit.Minute, Requests: n} }
	for _, x := range []struct {
		limit                tokens
		waiting, want, drift tokens
		before               bool // the drift is of another window
		units                tokens
	}{
		{limit: 800, waiting: 1, want: 1, units: 1},
		{limit: 800, want: 1, units: 1},
		{limit: 800, want: 40, units: 1},
		{limit: 800, want: 41, units: 2},
		{limit: 800, want: 100, units: 3},
		{limit: 800, want: 500, units: 3}, // 100 are an eighth
		{limit: 800, waiting: 101, want: 500, units: 3},
		{limit: 800, waiting: 121, want: 500, units: 4},
		{limit: 800, waiting: 800, want: 800, units: 20},
		{limit: 800, waiting: 801, want: 801, units: 0},
		{limit: 800, waiting: 40, want: 40, drift: 1, units: 2},
		{limit: 800, want: 1, drift: 1, units: 1}, // both are in the unit
		{limit: 800, want: 39, drift: 1, units: 1},
		{limit: 800, want: 40, drift: 1, units: 2},
		{limit: 800, want: 1, drift: 40, units: 2},
		{limit: 800, want: 500, drift: 100, units: 3}, // an eighth holds it,
		{limit: 800, want: 500, drift: 130, units: 4}, // or does not
		{limit: 800, waiting: 40, want: 40, drift: 1, before: true, units: 1},
		{limit: 800, waiting: 799, want: 800, drift: 1, units: 20},
		{limit: 800, waiting: 799, want: 800, drift: 2, units: 0},
		{limit: 7, waiting: 1, want: 5, units: 1}, // an eighth of 7 is nothing: what waits
		{limit: 7, want: 5, units: 1},
		{limit: 7, waiting: 7, want: 7, units: 7},
		{limit: 7, waiting: 8, want: 8, units: 0},
		{limit: 119, waiting: 100, want: 100, units: 20}, // 19 are in no unit
		{limit: 119, waiting: 101, want: 101, units: 0},
	} {
		c := ratelimit.Claim{
			Limit: minute(x.limit), Seq: 2, Stretch: true, Window: 9, Draw: 9,
			Waiting: x.waiting, Want: x.want, Granted: 7, Returned: 2, Spent: 5 + x.drift,
		}
		if x.before {
			c.Window = 8
		}
		if got := unitsOf(&c); got != x.units {
			t.Errorf("%+v: %d units", x, got)
		}
	}
}

// An account keeps what was drawn of the latest windows that have tills: of one too many, the first is forgotten.
func TestTillsOfManyWindows(t *testing.T) {
	const most = 16
	var a Account
	now := ledgerTime(1_800_000_015_000_000)
	for i := range window(most + 1) {
		at := now + ledgerTime(i)*ledgerTime(time.Minute/time.Microsecond)
		c := ratelimit.Claim{Limit: perMinute100, Holder: 2, Seq: 2, Stretch: true, Want: 1, Waiting: 1, TTL: time.Second}
		c.Draw = c.Limit.WindowAt(at)
		if _, ok := a.draw(at, &c); !ok {
			t.Fatalf("nothing is drawn of window %d", i)
		}
	}
	if len(a.tills) != most || a.tills[0].window != perMinute100.WindowAt(now)+1 {
		t.Errorf("%d tills, the first of window %d", len(a.tills), a.tills[0].window)
	}
}

// A server that forbids one of the commands of a draw is not asked for draws again; one that says something else, and
// one that is not reached, may be.
func TestDrawsThatAreForbidden(t *testing.T) {
	denied, busy, gone := redisSays("NOPERM this user has no permissions"), redisSays("BUSY a script runs"), errors.New("gone")
	for _, x := range []struct {
		length, expiry, clock error
		before                bool
		forbidden             bool
	}{
		{length: denied, forbidden: true},
		{expiry: denied, forbidden: true},
		{clock: denied, forbidden: true},
		{length: busy},
		{clock: busy},
		{length: busy, before: true, forbidden: true},
		{length: gone},
	} {
		ctx := context.Background()
		d := sentDraw{units: 1, length: redis.NewIntCmd(ctx), expiry: redis.NewBoolCmd(ctx), account: redis.NewStringCmd(ctx)}
		d.length.SetErr(x.length)
		d.expiry.SetErr(x.expiry)
		d.account.SetErr(redis.Nil)
		trip := tills{clock: redis.NewTimeCmd(ctx), sent: []sentDraw{d}, forbidden: x.before}
		trip.clock.SetErr(x.clock)
		c := ratelimit.Claim{Limit: perMinute100, Draw: 9, Seq: 8}
		g, ok := trip.next(&c)
		if ok != errors.Is(x.length, gone) || trip.forbidden != x.forbidden {
			t.Errorf("%+v: answered %v, forbidden %v", x, ok, trip.forbidden)
		}
		if ok && (g.Seq != 8 || !errors.Is(g.Err, gone)) {
			t.Errorf("%+v: answered with %+v", x, g)
		}
	}
}

// What one claim has drawn is read as it was written, and nothing is read of nothing.
func TestTillIsReadAsItIsWritten(t *testing.T) {
	c := ratelimit.Claim{Limit: perMinute100, Holder: 2, Seq: 8, Fence: 3, Window: 9, Draw: 9}
	for units := range tokens(3) {
		got, ok := readTill(entries(&c, units, 5))
		if ok != (units > 0) || got.units != units {
			t.Errorf("%d units: read %v, %+v", units, ok, got)
		}
		if ok && (len(got.drawn) != 1 || got.drawn[0] != drawing{holder: 2, n: 5 * units, seq: 8}) {
			t.Errorf("%d units: %+v", units, got.drawn)
		}
	}
}

// A till is open once the ledger's clock is later than all that an account has renamed, or is told again.
func TestTillOpensBehindWhatWasRenamed(t *testing.T) {
	now := ledgerTime(1_800_000_015_000_000)
	w := perMinute100.WindowAt(now)
	for _, x := range []struct {
		renamed, relearn ledgerTime
		open             bool
	}{{0, 0, true}, {now - 1, 0, true}, {now, 0, false}, {0, now, true}, {0, now + 1, false}} {
		a := Account{window: w}
		a.renamed, a.relearn = ratelimit.Fence(x.renamed), x.relearn
		if _, open := a.open(w, now, &perMinute100); open != x.open {
			t.Errorf("%+v: open %v", x, open)
		}
	}
}
