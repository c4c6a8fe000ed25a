package store

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
)

// uncounted is a Redis before 7, which does not report how many entries a stream has had.
type uncounted struct{}

func (uncounted) DialHook(next redis.DialHook) redis.DialHook { return next }

func (uncounted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (uncounted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if info, ok := cmd.(*redis.XInfoStreamCmd); ok {
			info.Val().EntriesAdded = 0
		}
		return err
	}
}

// recorded is a Redis with one event on record, of a claim.
func recorded(t *testing.T) (*inRedis, account.Claim) {
	t.Helper()
	f := few
	f.URL = redistest.Start(t).Addr
	s := started(t, Flags{Redis: f}).(*inRedis)
	c := halfOf(yearly, 1)
	c.Audit = "0 rule"
	settled(t, s.Ledger(), c)
	return s, c
}

// An audit says that a full record may lack events, also on a Redis that does not count them.
func TestAuditSaysWhatMayHaveExpired(t *testing.T) {
	s, c := recorded(t)
	s.people.AddHook(uncounted{})
	missing := func() string {
		all, err := s.Events(t.Context(), func(*account.Event) {})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, ", ")
	}
	if said := missing(); said != "" {
		t.Errorf("of one event it says %q", said)
	}
	name := account.RecordName("", c.Key)
	one := s.people.XRange(t.Context(), name, "-", "+").Val()[0].Values
	pipe := s.people.Pipeline()
	for range account.EventsKept {
		pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: name, Values: one})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said := missing(); !strings.Contains(said, "may have expired") {
		t.Errorf("of a full record it says %q", said)
	}
}

// SCAN can show a stream twice: its events are read once.
func TestAuditReadsEachEventOnce(t *testing.T) {
	s, _ := recorded(t)
	r := streamReader{client: s.people}
	for range 2 {
		if err := r.scan(t.Context(), s.people); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.events) != 1 {
		t.Errorf("of one event, %d are read", len(r.events))
	}
}
