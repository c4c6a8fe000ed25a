package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Store is a cluster of etcd. It is safe for concurrent use. Each call blocks at most until its context is done.
type Store struct {
	// config and prefix never change.
	config  clientv3.Config
	prefix  string
	client  atomic.Pointer[clientv3.Client] // nil until it is needed
	clock   atomic.Int64                    // the last time that was read
	lives   lives
	leases  leases
	history history

	// prepared means that the life and the leases of the near future were there once. It never becomes false again.
	prepared atomic.Bool
	reported atomic.Int64 // the lease of this process's reports about itself; 0: none yet
}

// Open makes a store of the cluster of a URL: etcd://user:password@host:port,host:port, and ?tls=true with cacert,
// cert and key, each a file, and compact=false. User and password are escaped as in any URL. It reads the files, and
// does not connect: [Store.Prepare] does. prefix separates fleets that share the cluster.
func Open(rawURL, prefix string) (*Store, error) {
	p, err := parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("not a valid etcd URL: %w", err)
	}
	s := &Store{config: p.config, prefix: prefix}
	s.history.kept = !p.compacts
	s.config.DialOptions = []grpc.DialOption{grpc.WithStatsHandler(&s.lives.dials), grpc.WithConnectParams(again)}
	return s, nil
}

// again is the backoff of connections. gRPC's own pauses grow to two minutes, for which a restarted etcd would stay
// unused.
var again = grpc.ConnectParams{
	Backoff: backoff.Config{
		BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond,
	},
	MinConnectTimeout: 2 * time.Second,
}

const (
	root       = "sluice/"
	recordsKey = root + "records/"
)

// keyOf is the key of a record. Records of all fleets have one root: the prefix of a fleet is a part of their names.
func keyOf(name string) string { return recordsKey + name }

// Prepare connects, and reads or begins the life of the data. Call it until it returns nil, before the store is used.
// Until then all other calls fail, except Ping.
func (s *Store) Prepare(ctx context.Context) error {
	if s.prepared.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTime) // etcd's client retries without end and without an error
	defer cancel()
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	// A read without records begins the life if there is none.
	_, err = s.read(ctx, c, nil)
	if err == nil {
		err = s.leases.ahead(clientv3.WithRequireLeader(ctx), c, s.now())
	}
	if err != nil {
		return s.failed(ctx, err)
	}
	s.prepared.Store(true)
	return nil
}

// prepareTime bounds one attempt: a node that starts without etcd tries again.
const prepareTime = time.Second

// connect makes the client, if there is none. A client with a password connects at once, and others with their first
// request. Several calls may make one each: the first is kept.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	if c := s.client.Load(); c != nil {
		return c, nil
	}
	// It outlives this call, so it has its own context.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	// Until the client is made, the end of this call also ends the attempt. stop is false if that has happened.
	stop := context.AfterFunc(ctx, cancel)
	config := s.config
	config.Context = own
	c, err := clientv3.New(config)
	if err == nil && !stop() {
		_ = c.Close() // it only ends
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return nil, s.failed(ctx, err)
	}
	if !s.client.CompareAndSwap(nil, c) { // another call was quicker
		_ = c.Close() // it only ends
	}
	return s.client.Load(), nil
}

// failed names the cluster in an error without a name. gRPC's own error of a context has no address, and operators see
// these errors.
func (s *Store) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("etcd: no answer of %s: %w", strings.Join(s.config.Endpoints, ", "), ctx.Err())
	}
	return fmt.Errorf("etcd: %w", err)
}

var errUnprepared = errors.New("etcd: the cluster has not answered yet")

// connected returns the client; before Prepare has succeeded, it is an error.
func (s *Store) connected() (*clientv3.Client, error) {
	if !s.prepared.Load() {
		return nil, errUnprepared
	}
	return s.client.Load(), nil
}

// Ping asks whether a majority of the cluster answers.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.revision(ctx)
	return err
}

// revision reads the revision of the data. WithRequireLeader makes a member without a leader answer with an error.
// Otherwise the call would wait for its deadline.
func (s *Store) revision(ctx context.Context) (int64, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return 0, err
	}
	r, err := c.Get(clientv3.WithRequireLeader(ctx), lifeKey, clientv3.WithKeysOnly())
	if err != nil {
		return 0, s.failed(ctx, err)
	}
	return r.Header.Revision, nil
}

// Close ends all connections.
func (s *Store) Close() {
	if c := s.client.Load(); c != nil {
		_ = c.Close() // it only ends
	}
}

// now is this node's time. It stands still if the clock was set back: ended windows must not return, because their
// accounts may be gone. Each call is at least the last one's time, also in other goroutines.
func (s *Store) now() ratelimit.LedgerTime {
	now := time.Now().UnixMicro()
	for {
		last := s.clock.Load()
		if now <= last {
			return ratelimit.LedgerTime(last)
		}
		if s.clock.CompareAndSwap(last, now) {
			return ratelimit.LedgerTime(now)
		}
	}
}

// Read implements [account.Store].
func (s *Store) Read(ctx context.Context, keys []account.StoreKey) (x account.Snapshot, err error) {
	c, err := s.connected()
	if err != nil {
		return x, err
	}
	x, err = s.read(ctx, c, keys)
	if err != nil {
		return x, s.failed(ctx, err)
	}
	return x, nil
}

// read reads again until the data is complete on all connections of the read. Without a life, or with that of an older
// copy, it begins another one and reads again. It also reads again after a new connection, which may lead to another
// cluster, or a restored one.
func (s *Store) read(ctx context.Context, c *clientv3.Client, keys []account.StoreKey) (account.Snapshot, error) {
	ctx = clientv3.WithRequireLeader(ctx)
	for {
		dials := s.lives.dials.Load()
		x := account.Snapshot{Now: s.now()} // before the request: not later than its state
		life, err := get(ctx, c, keys, &x)
		if err != nil {
			return x, err
		}
		// All nodes can find this at once: begin changes the life only once.
		lost := x.Life == ""
		if !lost {
			lost, err = s.lives.lost(ctx, c, x.Life, x.Now, dials)
		}
		if err == nil && lost {
			err = begin(ctx, c, life)
		}
		if err != nil {
			return account.Snapshot{}, err
		}
		if !lost && s.lives.dials.Load() == dials {
			return x, nil
		}
	}
}

// opsMost is etcd's maximum of operations in a transaction (--max-txn-ops).
const opsMost = 128

// get reads the life and records as of one revision. It returns the version of the life's record. Up to 127 records are
// one transaction. Those beyond are read at the first one's revision.
func get(ctx context.Context, c *clientv3.Client, keys []account.StoreKey, x *account.Snapshot) (int64, error) {
	ops := make([]clientv3.Op, 1, 1+len(keys))
	ops[0] = clientv3.OpGet(lifeKey)
	for i := range keys {
		ops = append(ops, clientv3.OpGet(keyOf(keys[i].Name)))
	}
	x.Records = make([]account.Record, 0, 1+len(keys))
	cluster, revision := uint64(0), int64(0)
	for from := 0; from < len(ops); from += opsMost {
		part := ops[from:min(from+opsMost, len(ops))]
		for i := range part {
			if revision != 0 {
				part[i] = clientv3.OpGet(string(part[i].KeyBytes()), clientv3.WithRev(revision))
			}
		}
		r, err := c.Txn(ctx).Then(part...).Commit()
		if err != nil {
			return 0, err
		}
		cluster, revision = r.Header.ClusterId, r.Header.Revision
		for _, one := range r.Responses {
			x.Records = append(x.Records, recordOf(one.GetResponseRange()))
		}
	}
	life := x.Records[0]
	x.Records = x.Records[1:]
	if life.Version != 0 {
		x.Life = lifeOf(cluster, string(life.Data))
	}
	return int64(life.Version), nil
}

// recordOf is the record of a key. Its version is the revision of its last change, which the whole cluster counts: a
// key that was deleted and made again has a higher one.
func recordOf(r *etcdserverpb.RangeResponse) account.Record {
	if len(r.GetKvs()) == 0 {
		return account.Record{}
	}
	return account.Record{Version: uint64(r.Kvs[0].ModRevision), Data: r.Kvs[0].Value}
}

const (
	// changesMost is the maximum of changes in a transaction. Etcd allows a nested transaction as many operations as
	// the outer one leaves of opsMost.
	changesMost = opsMost/2 - 1
	// bytesMost bounds a transaction of more than one change. Etcd takes 1.5 MiB (--max-request-bytes).
	bytesMost = 1 << 20
	// transactionsMost bounds the concurrent transactions of one call.
	transactionsMost = 8
)

// Write implements [account.Store]. Each change is a transaction inside of one that compares the life: etcd writes
// many to its disk at once, and each succeeds or fails separately.
func (s *Store) Write(ctx context.Context, inLife string, changes []account.Change) ([]bool, error) {
	c, err := s.connected()
	if err != nil {
		return nil, err
	}
	made := make([]bool, len(changes))
	all, bounded := errgroup.WithContext(clientv3.WithRequireLeader(ctx))
	all.SetLimit(transactionsMost)
	for from, to := 0, 0; from < len(changes); from = to {
		size := 0
		// A single larger change leaves alone: etcd takes it up to 1.5 MiB.
		for to = from; to < len(changes) && to-from < changesMost && (to == from || size < bytesMost); to++ {
			size += sizeOf(&changes[to])
		}
		all.Go(func() error { return s.write(bounded, c, inLife, changes[from:to], made[from:to]) })
	}
	if err := all.Wait(); err != nil {
		return nil, s.failed(ctx, err)
	}
	return made, nil
}

// sizeOf is about the bytes of a change in a transaction.
func sizeOf(c *account.Change) int { return len(c.Name) + len(c.Data) }

// write makes changes in one transaction. It fills made. An error may mean that the changes were made.
func (s *Store) write(
	ctx context.Context, c *clientv3.Client, inLife string, changes []account.Change, made []bool,
) error {
	cluster, nonce, ok := parseLife(inLife)
	if !ok {
		return account.ErrLife
	}
	var r *clientv3.TxnResponse
	err := s.leased(func() (err error) {
		r, err = s.commit(ctx, c, nonce, changes)
		return err
	})
	if err != nil {
		return err
	}
	// A cluster of another ID may have the same number, as a copy of the data. A change in the copy is none of this
	// life.
	if !r.Succeeded || r.Header.ClusterId != cluster {
		s.leases.forget()
		return account.ErrLife
	}
	for i := range changes {
		made[i] = r.Responses[i].GetResponseTxn().GetSucceeded()
		// The epoch is no usage, never ends, and is overwritten by any node.
		if made[i] && !strings.HasSuffix(changes[i].Name, account.EpochName) {
			s.lives.wrote(&changes[i], r.Header.Revision, inLife)
		}
	}
	return nil
}

// leased makes a write with leases. If another program has revoked one, nothing was written: all leases are granted
// again, and it is made once more.
func (s *Store) leased(write func() error) error {
	err := write()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.leases.forget()
		err = write()
	}
	return err
}

// commit sends one transaction. Each record is compared and put by its own nested one: a record that another node has
// changed does not keep the others from their change. A Version of 0 compares with a missing key.
func (s *Store) commit(
	ctx context.Context, c *clientv3.Client, nonce string, changes []account.Change,
) (*clientv3.TxnResponse, error) {
	now := s.now()
	ops := make([]clientv3.Op, len(changes))
	for i := range changes {
		change := &changes[i]
		key := keyOf(change.Name)
		lease, err := s.leases.of(ctx, c, now, change.Until, shareOf(change.Name))
		if err != nil {
			return nil, err
		}
		same := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", int64(change.Version))}
		put := []clientv3.Op{clientv3.OpPut(key, string(change.Data), clientv3.WithLease(lease))}
		ops[i] = clientv3.OpTxn(same, put, nil)
	}
	return c.Txn(ctx).If(clientv3.Compare(clientv3.Value(lifeKey), "=", nonce)).Then(ops...).Commit()
}

var (
	_ account.Store     = (*Store)(nil)
	_ account.Messenger = (*Store)(nil)
)
