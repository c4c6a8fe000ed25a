package etcd

import (
	"context"
	"encoding/binary"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A node has one key of messages, which each message overwrites, and watches it.

// A watch sees each version of the key, unless it was away. After that, the node states all totals again.
const recallsKey = root + "recalls/"

func recallsOf(node ratelimit.Holder) string { return recallsKey + account.HolderName(node) }

// Listen implements [account.Messenger].
func (s *Store) Listen(ctx context.Context, node ratelimit.Holder, ready func(), received func(name string)) error {
	c, err := s.connected()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for r := range c.Watch(ctx, recallsOf(node), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify()) {
		if r.Err() != nil {
			return r.Err()
		}
		// From here on no recall is missed.
		if r.Created {
			ready()
		}
		for _, e := range r.Events {
			eachName(e.Kv.Value, received)
		}
	}
	return nil
}

// Send implements [account.Messenger]. A later message to a node overwrites an earlier one. Its watch has both, in
// their order.
func (s *Store) Send(ctx context.Context, names map[ratelimit.Holder][]string) error {
	c, err := s.connected()
	if err != nil {
		return err
	}
	ctx = clientv3.WithRequireLeader(ctx)
	return s.leased(func() error { return s.send(ctx, c, names) })
}

func (s *Store) send(ctx context.Context, c *clientv3.Client, names map[ratelimit.Holder][]string) error {
	now := s.now()
	lease, err := s.leases.of(ctx, c, now, now, 0) // a recall goes with records that end soon
	if err != nil {
		return err
	}
	puts := make([]clientv3.Op, 0, len(names))
	for node, some := range names {
		var text []byte
		for _, name := range some {
			text = appendName(text, name)
		}
		puts = append(puts, clientv3.OpPut(recallsOf(node), string(text), clientv3.WithLease(lease)))
	}
	_, err = c.Txn(ctx).Then(puts...).Commit()
	return err
}

// appendName adds a name to a text of names, after its length: a name can contain any byte.
func appendName(text []byte, name string) []byte {
	return append(binary.AppendUvarint(text, uint64(len(name))), name...)
}

// eachName calls its function with each name of a text, as far as it can be read. Anyone may write to the key.
func eachName(text []byte, received func(name string)) {
	for len(text) > 0 {
		n, size := binary.Uvarint(text)
		if size <= 0 || n > uint64(len(text)-size) {
			return
		}
		text = text[size:]
		received(string(text[:n]))
		text = text[n:]
	}
}
