package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The audit record has a key for each change of an audited account, whose value has its events as JSON. A change may
// have more events than a transaction has operations. Keys begin with the time, so that old ones are deleted as a
// range.

const (
	eventsKey = root + "events/"
	// eventsPage is the number of keys of one read.
	eventsPage = 1000
)

// eventsOf is the prefix of the keys of a fleet's events. No fleet's prefix begins with another's.
func (s *Store) eventsOf() string { return eventsKey + url.PathEscape(s.prefix) + "/" }

func timeKey(at ratelimit.LedgerTime) string { return fmt.Sprintf("%016x", max(0, int64(at))) }

// record is the operation that writes events. Writing the same events twice makes two keys.
func (s *Store) record(now ratelimit.LedgerTime, events []account.Event) (clientv3.Op, error) {
	text, err := json.Marshal(events)
	if err != nil {
		return clientv3.Op{}, fmt.Errorf("writing the audit record: %w", err)
	}
	return clientv3.OpPut(fmt.Sprintf("%s%s-%016x", s.eventsOf(), timeKey(now), rand.Uint64()), string(text)), nil
}

// recorded is an event, and the revision of its write.
type recorded struct {
	account.Event
	revision int64
}

// Events calls see with all events of the nodes with this prefix, the oldest of each key first: in the order in which
// etcd committed them. It keeps all of them in memory.
func (s *Store) Events(ctx context.Context, see func(*account.Event)) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx = clientv3.WithRequireLeader(ctx)
	prefix := s.eventsOf()
	var all []recorded
	for from, revision, more := prefix, int64(0), true; more; {
		r, err := c.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)),
			clientv3.WithLimit(eventsPage), clientv3.WithRev(revision))
		if err != nil {
			return fmt.Errorf("etcd: reading the audit record: %w", err)
		}
		if revision == 0 {
			revision = r.Header.Revision
		}
		for _, kv := range r.Kvs {
			var events []account.Event
			if err := json.Unmarshal(kv.Value, &events); err != nil {
				return fmt.Errorf("etcd: %s has no events: %w", kv.Key, err)
			}
			for i := range events {
				all = append(all, recorded{events[i], kv.ModRevision})
			}
			from = string(kv.Key) + "\x00"
		}
		more = r.More
	}
	slices.SortStableFunc(all, func(a, b recorded) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.revision, b.revision))
	})
	for i := range all {
		see(&all[i].Event)
	}
	return nil
}

// Forget deletes events from before a time.
func (s *Store) Forget(ctx context.Context, before time.Time) error {
	c, err := s.connected()
	if err != nil {
		return err
	}
	prefix := s.eventsOf()
	end := prefix + timeKey(ratelimit.LedgerTime(before.UnixMicro()))
	if _, err := c.Delete(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithRange(end)); err != nil {
		return fmt.Errorf("etcd: deleting the audit record: %w", err)
	}
	return nil
}
