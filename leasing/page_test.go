package leasing

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/leasing/ledgertest/specpage"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The specification's numbers of the shell, and of what decides without the ledger, are the code's.
func TestPageConstants(t *testing.T) {
	page := specpage.Read(t)
	of := func(d time.Duration) []string { return []string{specpage.Duration(d)} }
	f := NewFleet(nil, 1, 100, func() instant { return 1 }, time.Unix(1, 0))
	rule := &ratelimit.Rule{Limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: 800}}
	kept := 0
	for sum := range tokens(801) {
		s := &f.shards[0]
		c := &cell{}
		c.Val.Part = lease.Part{Deadline: lease.Never, Sum: sum}
		c.Val.rule = s.rules.number(rule)
		if f.keptIdle(entry{Entry: lease.Entry{Key: &c.Val.Key}, shard: s, cell: c}) {
			kept = int(sum)
		}
	}
	failures, first, longest := breaks()
	page.Constants([]string{"fleet", "lane", "leasing", "ratelimit"}, map[string][]string{
		"lane.TimeLimit":          of(lane.TimeLimit),
		"ratelimit.YoungFor":      of(ratelimit.YoungFor),
		"ratelimit.YoungMost":     of(ratelimit.YoungMost),
		"leasing.firstWait":       of(firstWait),
		"ratelimit.LossPart":      {fmt.Sprint("1/", ratelimit.LossPart)},
		"leasing.keptIdle":        {fmt.Sprintf("%d/8", kept/100)},
		"leasing.recallPause":     of(recallPause),
		"leasing.registered":      of(registered),
		"leasing.renewEvery":      of(renewEvery),
		"ratelimit.RegisteredFor": of(ratelimit.RegisteredFor),
		"leasing.aliveFor":        of(aliveFor),
		"leasing.evictionRest":    of(evictionRest),
		"leasing.missedRest":      of(missedRest),
		"leasing.lastSeq":         {specpage.Power(lastSeq)},
		"leasing.lateTries":       {strconv.Itoa(lateTries)},
		"leasing.mostLate":        {strconv.Itoa(mostLate)},
		"leasing.breakAfter":      {strconv.Itoa(failures)},
		"leasing.breakFirst":      of(first),
		"leasing.breakLongest":    of(longest),
		"ratelimit.StoreDeadline": of(ratelimit.StoreDeadline),
		"ratelimit.PlentyAbove":   {fmt.Sprint("1/", ratelimit.PlentyAbove)},
		"ratelimit.MaxLimit":      {fmt.Sprintf("10^%.0f", math.Log10(float64(ratelimit.MaxLimit)))},
	})
}

// breaks says after how many failures a breaker opens, for how long at first, and at last; without jitter.
func breaks() (failures int, first, longest time.Duration) {
	const half = 0.5 // which is none: the time is as long as it is on average
	var b lane.Breaker
	for ; !b.Open(); failures++ {
		b.Failure(0, half)
	}
	open := func() (d time.Duration) {
		for ; b.Refuses(instant(d)); d += time.Millisecond {
		}
		return d
	}
	first = open()
	for range 20 {
		b.Failure(0, half)
	}
	return failures, first, open()
}

// The names of accounts that the specification shows are those of keys.
func TestPageNames(t *testing.T) {
	names := specpage.Quoted(specpage.Read(t).Between("names"))
	if len(names) < 4 {
		t.Errorf("%d names", len(names))
	}
	for _, name := range names {
		if key, ok := ratelimit.KeyOfName(name); !ok || ratelimit.KeyName(key) != name {
			t.Errorf("%s is no key's name", name)
		}
	}
}
