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

// What is over is deleted by etcd: a record has a lease, which it shares with an eighth of those that are over within
// the same ten minutes, or on the same day if that is more than a day away. The number of a lease says of which: nodes
// share them without asking. A change of a bucket moves it to another lease, away from the one before.
//
// Etcd deletes all that a lease has in one step, in which it does nothing else: 12 ms for 1,000 records on a slow core.
// So the eight leases of one time end a minute apart.

const (
	narrowSlot = ratelimit.LedgerTime(10 * time.Minute / time.Microsecond)
	wideSlot   = ratelimit.LedgerTime(24 * time.Hour / time.Microsecond)
	// grace is for how long a record is kept after it is over: so far may clocks of nodes differ.
	grace = 10 * time.Minute
	// neverOver is how far away the end of a record is that has no lease. Etcd has none of more than 285 years.
	neverOver = ratelimit.LedgerTime(20 * 366 * 24 * time.Hour / time.Microsecond)
	// leasesKnown bounds those that are remembered.
	leasesKnown = 1 << 14
	// shares is how many leases what is over at one time has, and shareApart how far apart they end.
	shares     = 8
	shareApart = time.Minute
	// grantsMost bounds how many are granted at once.
	grantsMost = 8
)

// The number of a lease: "slu", whether its slot is wide, which slot it is, and which share of that.
const (
	leaseBase clientv3.LeaseID = 0x736c75 << 40
	leaseWide clientv3.LeaseID = 1 << 39
)

// leaseOf is the lease of a share of what is over then, and for how long it is granted.
func leaseOf(now, until ratelimit.LedgerTime, share uint64) (id clientv3.LeaseID, ttl time.Duration) {
	slot, id := narrowSlot, leaseBase
	if until-now > wideSlot {
		slot, id = wideSlot, id|leaseWide
	}
	n := until/slot + 1
	ttl = (n * slot).Sub(now) + grace + time.Duration(share)*shareApart
	return id + clientv3.LeaseID(uint64(n)*shares+share), ttl
}

func shareOf(name string) uint64 { return xxhash.Sum64String(name) % shares }

// leases are those that are known to be granted. The zero leases knows none.
type leases struct {
	mu    sync.Mutex
	known map[clientv3.LeaseID]bool // guarded by mu
}

// of is the lease of a record that is over then, which is granted from then on; 0 where it is never over.
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
	// Not the client's Grant: that takes no number.
	request := &etcdserverpb.LeaseGrantRequest{ID: int64(id), TTL: int64(ttl / time.Second)}
	_, err := clientv3.RetryLeaseClient(c).LeaseGrant(ctx, request)
	if err = clientv3.ContextError(ctx, err); err != nil && !errors.Is(err, rpctypes.ErrLeaseExist) {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil || len(l.known) >= leasesKnown {
		l.known = map[clientv3.LeaseID]bool{}
	}
	l.known[id] = true
	return id, nil
}

// ahead grants the leases of windows of the near future, so that no request waits for one.
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

// forget has all leases granted anew before they are used.
func (l *leases) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = nil
}
