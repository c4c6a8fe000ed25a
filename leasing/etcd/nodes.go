package etcd

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

const nodesKey = root + "nodes/"

// Register notes a node's report about itself, "" if it is gone, and calls see with each report in a time until now.
// Etcd deletes older ones, by a lease. Their age is by the clocks of both nodes.
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
		lease, err := c.Grant(ctx, int64(max(1, within/time.Second)))
		if err != nil {
			return fmt.Errorf("etcd: %w", err)
		}
		write = clientv3.OpPut(prefix+node, fmt.Sprint(int64(now), " ", text), clientv3.WithLease(lease.ID))
	}
	r, err := c.Txn(ctx).Then(write, clientv3.OpGet(prefix, clientv3.WithPrefix())).Commit()
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	for _, kv := range r.Responses[1].GetResponseRange().Kvs {
		stamp, text, _ := strings.Cut(string(kv.Value), " ")
		at, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			continue // another program's
		}
		ago := now.Sub(ratelimit.LedgerTime(at))
		see(strings.TrimPrefix(string(kv.Key), prefix), text, min(max(0, ago), within))
	}
	return nil
}

// Durable tells whether commits survive a crash of all members: they do, unless members run with --unsafe-no-fsync,
// which etcd does not report. It asks whether a majority answers.
func (s *Store) Durable(ctx context.Context) (bool, error) {
	err := s.Ping(ctx)
	return err == nil, err
}
