package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

// nodesKey begins the keys of reports: sluice/nodes/PREFIX/NODE. The prefix is escaped, so that none is the beginning
// of another.
const nodesKey = root + "nodes/"

// Register notes a node's report about itself, "" if it is gone, and calls see with each report in a time until now.
// Etcd deletes older ones, by a lease that this process has for all of its reports. Their age is by the clocks of both
// nodes.
func (s *Store) Register(
	ctx context.Context, node, text string, within time.Duration, see func(node, text string, ago time.Duration),
) error {
	c, err := s.connected()
	if err != nil {
		return err
	}
	ctx = clientv3.WithRequireLeader(ctx)
	prefix := nodesKey + url.PathEscape(s.prefix) + "/"
	write, now := clientv3.OpDelete(prefix+node), s.now()
	if text != "" {
		// With the lease, the reports of a node that died are deleted.
		lease, err := s.reports(ctx, c, within)
		if err != nil {
			return fmt.Errorf("etcd: %w", err)
		}
		write = clientv3.OpPut(prefix+node, fmt.Sprint(int64(now), " ", text), clientv3.WithLease(lease))
	}
	r, err := c.Txn(ctx).Then(write, clientv3.OpGet(prefix, clientv3.WithPrefix())).Commit()
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	for _, kv := range r.Responses[1].GetResponseRange().Kvs {
		// A report is "1764500000000000 TEXT": its time in microseconds.
		stamp, text, _ := strings.Cut(string(kv.Value), " ")
		at, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			continue // another program's
		}
		// Clocks of nodes differ: a report from the future is one of now.
		ago := now.Sub(ratelimit.LedgerTime(at))
		see(strings.TrimPrefix(string(kv.Key), prefix), text, min(max(0, ago), within))
	}
	return nil
}

// reports is the lease of this process's reports, renewed. One lease for all reports of a process costs etcd less than
// one for each.
func (s *Store) reports(ctx context.Context, c *clientv3.Client, within time.Duration) (clientv3.LeaseID, error) {
	if id := clientv3.LeaseID(s.reported.Load()); id != 0 {
		_, err := c.KeepAliveOnce(ctx, id)
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return id, err
		}
	}
	lease, err := c.Grant(ctx, int64(max(1, within/time.Second)))
	if err != nil {
		return 0, err
	}
	s.reported.Store(int64(lease.ID))
	return lease.ID, nil
}

// Durable reports whether commits survive a crash of all members: they do, unless members run with --unsafe-no-fsync,
// which etcd does not report. It asks whether a majority answers.
func (s *Store) Durable(ctx context.Context) (bool, error) {
	err := s.Ping(ctx)
	return err == nil, err
}
