package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

type instant = ratelimit.LedgerTime

// Feed is a [table.Store] in the cluster of a [Store], which must be prepared first. A record has two keys: one by its
// own key, and one by its place in the feed. A third one, the tip, has the last place: each change compares and sets
// it, so that places are seen in order. Etcd drops removed and ended records by leases.
type Feed struct{ *Store }

func (f Feed) tipName() string { return f.prefix + "sluice:table" }

func (f Feed) atKey(key string) string { return root + "table/" + f.prefix + "/at/" + key }

func (f Feed) feedKey(place int64) string {
	return fmt.Sprintf("%stable/%s/feed/%016x", root, f.prefix, place)
}

// tip is the state of the feed.
type tip struct {
	Place int64
	Top   instant // the highest version that there ever was
}

// placed is a record with its place.
type placed struct {
	Place         int64
	Version, Ends instant
	Key, Value    []byte // as base64: keys are no UTF-8
}

func readPlaced(data []byte) (r table.Record, place int64, err error) {
	var p placed
	if err := json.Unmarshal(data, &p); err != nil {
		return r, 0, fmt.Errorf("etcd: a record of the table: %w", err)
	}
	return table.Record{Key: string(p.Key), Version: p.Version, Ends: p.Ends, Value: string(p.Value)}, p.Place, nil
}

// readTip reads the tip, and the life that it is of.
func (f Feed) readTip(ctx context.Context) (is tip, x account.Snapshot, err error) {
	x, err = f.Read(ctx, []account.StoreKey{{Name: f.tipName()}})
	if err == nil && x.Records[0].Version != 0 {
		err = json.Unmarshal(x.Records[0].Data, &is)
	}
	return is, x, err
}

// Since implements [table.Store].
func (f Feed) Since(ctx context.Context, life string, after int64, n int) (p table.Page, err error) {
	is, x, err := f.readTip(ctx)
	if err != nil {
		return p, err
	}
	if x.Life == life && is.Place < after { // the life's record alone does not show each older copy
		if err := f.another(ctx, life); err != nil {
			return p, err
		}
		return f.Since(ctx, life, after, n)
	}
	if x.Life != life {
		after = 0
	}
	p = table.Page{Life: x.Life, Now: x.Now, Place: max(after, is.Place)}
	if is.Place <= after {
		return p, nil
	}
	r, err := f.client.Load().Get(clientv3.WithRequireLeader(ctx), f.feedKey(after+1),
		clientv3.WithRange(f.feedKey(1<<62)), clientv3.WithLimit(int64(n)))
	if err != nil {
		return p, f.failed(ctx, err)
	}
	for _, kv := range r.Kvs {
		record, place, err := readPlaced(kv.Value)
		if err != nil {
			return table.Page{}, err
		}
		p.Records, after = append(p.Records, record), place
	}
	if p.More = r.More; p.More {
		p.Place = after
	}
	p.Place = max(p.Place, after)
	return p, nil
}

// another begins another life in place of one.
func (f Feed) another(ctx context.Context, life string) error {
	_, nonce, _ := parseLife(life)
	_, err := f.client.Load().Txn(clientv3.WithRequireLeader(ctx)).
		If(clientv3.Compare(clientv3.Value(lifeKey), "=", nonce)).
		Then(clientv3.OpPut(lifeKey, fmt.Sprintf("%016x", rand.Uint64()))).Commit()
	if err != nil {
		return f.failed(ctx, err)
	}
	return nil
}

// feedMost is the maximum of records in a transaction: each has three operations, and there is one more.
const feedMost = (opsMost - 1) / 3

// Merge implements [table.Store]. Each transaction has a part of the records.
func (f Feed) Merge(ctx context.Context, life string, records []table.Record) error {
	for len(records) > 0 {
		n := min(feedMost, len(records))
		keys := make([]string, n)
		for i := range keys {
			keys[i] = records[i].Key
		}
		err := f.change(ctx, life, keys, func(*tip, instant, []table.Record) ([]table.Record, error) {
			return records[:n], nil
		})
		if err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// Set implements [table.Store].
func (f Feed) Set(
	ctx context.Context, life string, r table.Record, expected table.Expected,
) (is table.Record, err error) {
	err = f.change(ctx, life, []string{r.Key}, func(at *tip, now instant, has []table.Record) ([]table.Record, error) {
		if is = has[0]; !is.Is(expected, now) {
			return nil, table.ErrChanged
		}
		r.Version = max(now, at.Top+1)
		is = r
		return []table.Record{r}, nil
	})
	return is, err
}

// change merges the records that make returns of those that there are, in one transaction. It tries again while other
// nodes change the table.
func (f Feed) change(
	ctx context.Context, life string, keys []string,
	make func(at *tip, now instant, has []table.Record) ([]table.Record, error),
) error {
	for {
		at, x, err := f.readTip(ctx)
		if err != nil {
			return err
		}
		if x.Life != life {
			return table.ErrLife
		}
		has, places, err := f.records(ctx, keys)
		if err != nil {
			return err
		}
		if slices.Max(places) > at.Place {
			continue // they were changed since the tip was read
		}
		records, err := make(&at, x.Now, has)
		if err != nil {
			return err
		}
		ops, err := f.puts(ctx, &at, x.Now, records, has, places)
		if err != nil || len(ops) == 0 {
			return err
		}
		done, err := f.put(ctx, life, x.Records[0].Version, &at, ops)
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return f.failed(ctx, ctx.Err())
		case <-time.After(rand.N(10 * time.Millisecond)):
		}
	}
}

// records are those of keys, and their places.
func (f Feed) records(ctx context.Context, keys []string) (has []table.Record, places []int64, err error) {
	ops := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		ops[i] = clientv3.OpGet(f.atKey(key))
	}
	r, err := f.client.Load().Txn(clientv3.WithRequireLeader(ctx)).Then(ops...).Commit()
	if err != nil {
		return nil, nil, f.failed(ctx, err)
	}
	has, places = make([]table.Record, len(keys)), make([]int64, len(keys))
	for i, one := range r.Responses {
		if data := recordOf(one.GetResponseRange()).Data; data != nil {
			if has[i], places[i], err = readPlaced(data); err != nil {
				return nil, nil, err
			}
		}
	}
	return has, places, nil
}

// puts are the operations that merge records, and advance the tip. has are those of the same keys.
func (f Feed) puts(
	ctx context.Context, at *tip, now instant, records, has []table.Record, places []int64,
) (ops []clientv3.Op, err error) {
	for i := range records {
		r, place, until := &records[i], places[i], records[i].Until(now)
		at.Top = max(at.Top, r.Version)
		switch {
		case r.Above(&has[i]):
			if place != 0 {
				ops = append(ops, clientv3.OpDelete(f.feedKey(place)))
			}
			at.Place++
			place = at.Place
		case has[i].Above(r) || until == 0:
			continue
		}
		lease := clientv3.NoLease
		if until != 0 {
			lease, err = f.leases.of(ctx, f.client.Load(), now, until, shareOf(r.Key))
			if err != nil {
				return nil, f.failed(ctx, err)
			}
		}
		data, err := json.Marshal(placed{place, r.Version, r.Ends, []byte(r.Key), []byte(r.Value)})
		if err != nil {
			return nil, err
		}
		ops = append(ops, clientv3.OpPut(f.feedKey(place), string(data), clientv3.WithLease(lease)),
			clientv3.OpPut(f.atKey(r.Key), string(data), clientv3.WithLease(lease)))
	}
	return ops, nil
}

// put makes a change, unless the tip or the life is another one.
func (f Feed) put(ctx context.Context, life string, version uint64, at *tip, ops []clientv3.Op) (done bool, err error) {
	cluster, nonce, ok := parseLife(life)
	if !ok {
		return false, table.ErrLife
	}
	data, err := json.Marshal(at)
	if err != nil {
		return false, err
	}
	key := keyOf(f.tipName())
	r, err := f.client.Load().Txn(clientv3.WithRequireLeader(ctx)).If(
		clientv3.Compare(clientv3.Value(lifeKey), "=", nonce),
		clientv3.Compare(clientv3.ModRevision(key), "=", int64(version)),
	).Then(append(ops, clientv3.OpPut(key, string(data)))...).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		f.leases.forget() // nothing was written
		return false, nil
	case err != nil:
		return false, f.failed(ctx, err)
	case r.Header.ClusterId != cluster:
		return false, table.ErrLife
	}
	return r.Succeeded, nil
}

var _ table.Store = Feed{}
