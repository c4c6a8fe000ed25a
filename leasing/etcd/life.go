package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/stats"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The life of the data is the cluster's ID, and a number at random in a record, which all writes compare.
//
// The ID alone does not show an older copy: it is made of the members' addresses and of the cluster's token. So a
// snapshot restored in the same place has the same ID. The restored record has the same number, too. Only the last
// reported write shows it: an older copy lacks that write, and a process that sees this changes the number in the
// record. It checks at each new connection, because the restore of a cluster ends all connections. The write must be of
// a record that has not ended.
//
// A process that began after the restore has no earlier write, and has lost nothing.

// lifeKey has 16 hexadecimal digits as its value. A life in a snapshot is "cluster-number", as in
// "cdf818194e3a8c32-9b1d6f0a3c5e7f21".
const lifeKey = root + "life"

func lifeOf(cluster uint64, nonce string) string { return fmt.Sprintf("%x-%s", cluster, nonce) }

func parseLife(s string) (cluster uint64, nonce string, ok bool) {
	id, nonce, ok := strings.Cut(s, "-")
	cluster, err := strconv.ParseUint(id, 16, 64)
	return cluster, nonce, ok && err == nil
}

// begin begins another life, unless another node has done so: the life's record had that version, 0 for none.
func begin(ctx context.Context, c *clientv3.Client, version int64) error {
	_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(lifeKey), "=", version)).
		Then(clientv3.OpPut(lifeKey, fmt.Sprintf("%016x", rand.Uint64()))).Commit()
	return err
}

// lives is how a process detects an older copy of the data.
type lives struct {
	dials dials

	mu sync.Mutex
	// writes are reported ones: the last one, and earlier ones whose records end later than those of all later writes.
	// So their number stays small. Guarded by mu.
	writes []write
	// proven is the number of connections at the last check that found the write: without a new one since, the data
	// cannot have been replaced. Guarded by mu.
	proven int64
}

// write is a reported write.
type write struct {
	key      string
	revision int64 // 0: there was none
	// sum is of the data. A restored cluster counts revisions anew, so another write may have the same one.
	sum   uint64
	until ratelimit.LedgerTime
	life  string
}

// wrote notes a write. Earlier ones whose records end first show no other loss. A write of another life says nothing of
// this one.
func (l *lives) wrote(c *account.Change, revision int64, life string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := write{keyOf(c.Name), revision, xxhash.Sum64(c.Data), c.Until, life}
	l.writes = append(slices.DeleteFunc(l.writes, func(was write) bool {
		return was.life != life || was.revision <= revision && was.until <= w.until
	}), w)
}

// lost reports whether data in a life lacks the last write whose record has not ended, if there are new connections
// since the last check. If that cannot be found, because the write was overwritten and compacted, it counts as lost.
// This costs two seconds, in which nodes state their totals. It reads only once for each new connection, so that a
// usual read costs no more than its own request.
func (l *lives) lost(
	ctx context.Context, c *clientv3.Client, life string, now ratelimit.LedgerTime, dials int64,
) (bool, error) {
	l.mu.Lock()
	w, proven := write{}, l.proven
	for _, of := range l.writes { // another life is learnt anyway
		if of.life == life && of.until > now && of.revision > w.revision {
			w = of
		}
	}
	l.mu.Unlock()
	if proven >= dials {
		return false, nil
	}
	if w.revision != 0 {
		there, err := w.there(ctx, c)
		if err != nil || !there {
			return err == nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proven = max(l.proven, dials)
	return false, nil
}

// there reports whether the data has a write, now or in its history. Revision 0 is now. An older copy may not have
// reached the write's revision yet, or has another value there.
func (w *write) there(ctx context.Context, c *clientv3.Client) (bool, error) {
	for _, at := range []int64{0, w.revision} {
		r, err := c.Get(ctx, w.key, clientv3.WithRev(at))
		if errors.Is(err, rpctypes.ErrFutureRev) || errors.Is(err, rpctypes.ErrCompacted) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if len(r.Kvs) == 1 && r.Kvs[0].ModRevision == w.revision && xxhash.Sum64(r.Kvs[0].Value) == w.sum {
			return true, nil
		}
	}
	return false, nil
}

// dials counts connections. It implements [stats.Handler]: gRPC calls it before a connection has a request.
type dials struct{ atomic.Int64 }

// TagRPC implements [stats.Handler].
func (d *dials) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements [stats.Handler].
func (d *dials) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn implements [stats.Handler].
func (d *dials) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler]. The count rises before the connection's first request, so a read that used a
// new connection sees a higher count afterwards.
func (d *dials) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		d.Add(1)
	}
}
