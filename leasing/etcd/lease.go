package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Etcd deletes ended records: a record shares a lease with an eighth of those that end within the same ten minutes.
// If that is more than a day away, it shares it with those of the same day. The number of a lease is computed from
// this time and share, so that nodes share leases without messages. A change of a bucket moves it from one lease to
// another.
//
// Etcd deletes all records of a lease in one step, and does nothing else meanwhile: 12 ms for 1,000 records on a slow
// core. So the eight leases of one time end a minute apart.

const (
	narrowSlot = ratelimit.LedgerTime(10 * time.Minute / time.Microsecond)
	wideSlot   = ratelimit.LedgerTime(24 * time.Hour / time.Microsecond)
	// grace is the time that a record is kept after its end, for differences between clocks of nodes.
	grace = 10 * time.Minute
	// neverOver is the distance of an end from which a record has no lease. Etcd has none of more than 285 years.
	neverOver = ratelimit.LedgerTime(20 * 366 * 24 * time.Hour / time.Microsecond)
	// leasesKnown bounds the remembered leases.
	leasesKnown = 1 << 14
	// shares is the number of leases for one end, and shareApart the time between their ends.
	shares     = 8
	shareApart = time.Minute
	// grantsMost bounds concurrent grants.
	grantsMost = 8
)

// The number of a lease: "slu", whether its slot is wide, its slot, and its share of that.
const (
	leaseBase clientv3.LeaseID = 0x736c75 << 40
	leaseWide clientv3.LeaseID = 1 << 39
)

// leaseOf is the lease of a share of records with that end, and its TTL. The slot's end is rounded up, so that no
// record is deleted before its own. For example, an end at 12:34 is in the slot until 12:40, and share 3 of it ends at
// 12:53 with the grace.
func leaseOf(now, until ratelimit.LedgerTime, share uint64) (id clientv3.LeaseID, ttl time.Duration) {
	slot, id := narrowSlot, leaseBase
	if until-now > wideSlot {
		slot, id = wideSlot, id|leaseWide
	}
	n := until/slot + 1
	ttl = (n * slot).Sub(now) + grace + time.Duration(share)*shareApart
	return id + clientv3.LeaseID(uint64(n)*shares+share), ttl
}

// shareOf spreads records over the leases of a slot, the same at all nodes.
func shareOf(name string) uint64 { return xxhash.Sum64String(name) % shares }

// leases are the leases that are granted for certain. The zero leases are none.
type leases struct {
	mu    sync.Mutex
	known map[clientv3.LeaseID]bool // guarded by mu
}

// of is the lease of a record with that end, granted if necessary; 0 if the record has no end. A lease that exists
// already was granted by another node.
func (l *leases) of(
	ctx context.Context, c *clientv3.Client, now, until ratelimit.LedgerTime, share uint64,
) (clientv3.LeaseID, error) {
	if until-now > neverOver {
		return clientv3.NoLease, nil
	}
	id, ttl := leaseOf(now, max(now, until), share)
	l.mu.Lock()
	known := l.known[id]
	l.mu.Unlock()
	if known {
		return id, nil
	}
	// Not the client's Grant, which has no argument for a number.
	request := &etcdserverpb.LeaseGrantRequest{ID: int64(id), TTL: int64(ttl / time.Second)}
	_, err := clientv3.RetryLeaseClient(c).LeaseGrant(ctx, request)
	err = clientv3.ContextError(ctx, err)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Most of them have ended by then, and a lease that is granted again costs one request.
	if l.known == nil || len(l.known) >= leasesKnown {
		l.known = map[clientv3.LeaseID]bool{}
	}
	l.known[id] = true
	return id, nil
}

// ahead grants the leases of windows of the near future, so that no request waits for one. The accounts of the current
// and the next window of an hour or a day end in these slots, one window later than the window.
func (l *leases) ahead(ctx context.Context, c *clientv3.Client, now ratelimit.LedgerTime) error {
	untils := []ratelimit.LedgerTime{now, now + narrowSlot, now + 2*narrowSlot, now + 3*narrowSlot}
	for _, period := range []time.Duration{time.Hour, 24 * time.Hour} {
		p := ratelimit.LedgerTime(period / time.Microsecond)
		untils = append(untils, (now/p+2)*p, (now/p+3)*p)
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(grantsMost)
	for _, until := range untils {
		for share := range uint64(shares) {
			all.Go(func() error {
				_, err := l.of(ctx, c, now, until, share)
				return err
			})
		}
	}
	return all.Wait()
}

// forget makes all leases be granted again before their use.
func (l *leases) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = nil
}
