package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

// historyKept is the minimum time that etcd keeps overwritten data: as long as Kubernetes keeps it.
const historyKept = 5 * time.Minute

// ErrCompact means that the user may not compact. Without compaction, etcd fills up.
var ErrCompact = errors.New("only a user with the role root may compact")

// history is the state of compactions.
type history struct {
	kept bool // another program compacts. It never changes

	mu       sync.Mutex
	revision int64     // guarded by mu: of the data at that time; 0: of none
	at       time.Time // guarded by mu
}

// Drop implements [account.Store]. Etcd deletes ended records by their leases, so that none are left to drop. It
// grants leases of the near future, and compacts data that was overwritten more than five minutes ago: without that,
// the data grows until etcd takes no more writes.
func (s *Store) Drop(ctx context.Context, _ ratelimit.LedgerTime) (n int, more bool, err error) {
	c, err := s.connected()
	if err != nil {
		return 0, false, err
	}
	// CAS.Sweep calls Drop on each node from time to time, which suits the other upkeep as well.
	if err := s.leases.ahead(clientv3.WithRequireLeader(ctx), c, s.now()); err != nil {
		return 0, false, fmt.Errorf("etcd: granting leases: %w", err)
	}
	if s.history.kept {
		return 0, false, nil
	}
	revision, err := s.revision(ctx)
	if err != nil {
		return 0, false, err
	}
	if old := s.history.due(revision, time.Now()); old != 0 {
		_, err := c.Compact(clientv3.WithRequireLeader(ctx), old)
		switch {
		case errors.Is(err, rpctypes.ErrPermissionDenied):
			err = ErrCompact
		case err == nil, errors.Is(err, rpctypes.ErrCompacted): // by another node
			return 0, false, nil
		}
		return 0, false, fmt.Errorf("etcd: compacting overwritten data: %w", err)
	}
	return 0, false, nil
}

// due is the revision to compact, 0 for none. It notes the current one for later. So each compaction leaves at least
// the last five minutes, and at most the time between two calls more. A restart begins with another five minutes.
func (h *history) due(revision int64, now time.Time) (old int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.revision != 0 && now.Sub(h.at) < historyKept {
		return 0
	}
	old = h.revision
	h.revision = revision
	h.at = now
	return old
}
