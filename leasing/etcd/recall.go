package etcd

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// recalls are recalls on their way to etcd. They are outside of the transactions that cause them: a recall is a hint,
// which may be lost. A node has one key, which each message of recalls overwrites, and watches it.
type recalls struct {
	waiting chan recalled
	passing atomic.Bool
}

// recalled is the recalls of a node.
type recalled struct {
	node ratelimit.Holder
	name string
}

const (
	recallsKey = root + "recalls/"
	// recallsMost bounds the waiting ones; more are left out.
	recallsMost = 1 << 10
	// recallsPassed is the number of concurrent messages.
	recallsPassed = 100
	recallTime    = time.Second // of a message
	listenAgain   = time.Second
)

func newRecalls() recalls { return recalls{waiting: make(chan recalled, recallsMost)} }

func recallsOf(node ratelimit.Holder) string { return recallsKey + account.HolderName(node) }

// Listen implements [account.Listener].
func (s *Store) Listen(ctx context.Context, node ratelimit.Holder, heard func(name string)) {
	go s.pass(ctx)
	for again := false; ctx.Err() == nil; again = true {
		if c, err := s.connected(); err == nil {
			listen(ctx, c, node, again, heard)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

// listen watches until the watch breaks.
func listen(ctx context.Context, c *clientv3.Client, node ratelimit.Holder, again bool, heard func(name string)) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for r := range c.Watch(ctx, recallsOf(node), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify()) {
		if r.Err() != nil {
			return
		}
		if r.Created && again {
			heard("") // some may have been missed
		}
		for _, e := range r.Events {
			eachName(e.Kv.Value, heard)
		}
	}
}

// ask recalls nodes whose tokens others need. It does not wait.
func (r *recalls) ask(c *account.Change) {
	for _, h := range c.Recalled {
		select {
		case r.waiting <- recalled{account.NodeOf(h), c.Name}:
		default:
		}
	}
}

// pass sends recalls until ctx is done. One goroutine does it.
func (s *Store) pass(ctx context.Context) {
	if s.passing.Swap(true) {
		return
	}
	defer s.passing.Store(false)
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-s.waiting:
			names := map[ratelimit.Holder][]byte{r.node: appendName(nil, r.name)}
			for n, more := 1, true; more && n < recallsPassed; n++ {
				select {
				case r := <-s.waiting:
					names[r.node] = appendName(names[r.node], r.name)
				default:
					more = false
				}
			}
			s.tell(ctx, names)
		}
	}
}

func (s *Store) tell(ctx context.Context, names map[ratelimit.Holder][]byte) {
	c, err := s.connected()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), recallTime)
	defer cancel()
	now := s.now()
	lease, err := s.leases.of(ctx, c, now, now, 0) // a recall goes with records that end soon
	if err != nil {
		return
	}
	puts := make([]clientv3.Op, 0, len(names))
	for node, text := range names {
		puts = append(puts, clientv3.OpPut(recallsOf(node), string(text), clientv3.WithLease(lease)))
	}
	_, _ = c.Txn(ctx).Then(puts...).Commit()
}

// appendName adds a name to a text of names, after its length: a name can contain any byte.
func appendName(text []byte, name string) []byte {
	return append(binary.AppendUvarint(text, uint64(len(name))), name...)
}

// eachName calls its function with each name of a text, as far as it can be read.
func eachName(text []byte, heard func(name string)) {
	for len(text) > 0 {
		n, size := binary.Uvarint(text)
		if size <= 0 || n > uint64(len(text)-size) {
			return
		}
		text = text[size:]
		heard(string(text[:n]))
		text = text[n:]
	}
}
