package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

type instant = ratelimit.LedgerTime

// Feed is a [table.Store] in the cluster of a [Store], which must be prepared first. A record has two keys: one by its
// own key, and one by its place in the feed. A third one, the tip, has the last place: each change compares and sets
// it, so that places are seen in order. A record is in one transaction with its place and the tip, so that a reader of
// the feed never misses a change.
type Feed struct{ *Store }

// tipName is the name of the tip, which is a record like an account.
func (f Feed) tipName() string { return f.prefix + "sluice:table" }

// atKey is where the record of a key is. Keys of tables are bytes, which etcd takes as they are.
func (f Feed) atKey(key string) string { return root + "table/" + f.prefix + "/at/" + key }

// feedKey is where the record with a place is.
func (f Feed) feedKey(place int64) string {
	return fmt.Sprintf("%stable/%s/feed/%016x", root, f.prefix, place)
}

// tip is the state of the feed. As JSON: {"Place":12,"Top":1764500000000000}.
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

// readTip reads the tip, and the life that it is of. Without a tip, the table is empty, and its first place is 1.
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
	// Places only rise in one life. A lower one is of an older copy, so this node begins another life.
	if x.Life == life && is.Place < after { // the life's record alone does not show each older copy
		if err := f.another(ctx, life); err != nil {
			return p, err
		}
		return f.Since(ctx, life, after, n)
	}
	// The caller has places of another life: it gets all records.
	if x.Life != life {
		after = 0
	}
	p = table.Page{Life: x.Life, Now: x.Now, Place: max(after, is.Place)}
	// There is nothing new.
	if is.Place <= after {
		return p, nil
	}
	// The names of places have 16 hexadecimal digits, so their order is that of the numbers.
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
	p.More = r.More
	if p.More {
		p.Place = after
	}
	// A change after the tip was read may have a higher place. The next page begins after it.
	p.Place = max(p.Place, after)
	return p, nil
}

// another begins another life in place of one. Of several nodes that find the older copy, one does it: the others'
// comparison fails, and they read the new life.
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
	return f.each(ctx, life, records, (*tip).puts)
}

// Drop implements [table.Store]. Each transaction has a part of the records.
func (f Feed) Drop(ctx context.Context, life string, records []table.Record) error {
	return f.each(ctx, life, records, (*tip).drops)
}

// each changes records in parts. If it fails in its middle, the parts before are made.
func (f Feed) each(ctx context.Context, life string, records []table.Record, how how) error {
	for len(records) > 0 {
		some := records[:min(feedMost, len(records))]
		keys := make([]string, len(some))
		for i := range keys {
			keys[i] = some[i].Key
		}
		err := f.change(ctx, life, keys, how, func(*tip, instant, []table.Record) ([]table.Record, error) {
			return some, nil
		})
		if err != nil {
			return err
		}
		records = records[len(some):]
	}
	return nil
}

// Set implements [table.Store].
func (f Feed) Set(
	ctx context.Context, life string, r table.Record, expected table.Expected,
) (is table.Record, err error) {
	put := func(at *tip, now instant, has []table.Record) ([]table.Record, error) {
		is = has[0]
		if !is.Is(expected, now) {
			return nil, table.ErrChanged
		}
		r.Version = max(now, at.Top+1)
		is = r
		return []table.Record{r}, nil
	}
	err = f.change(ctx, life, []string{r.Key}, (*tip).puts, put)
	return is, err
}

// how is what becomes of records in a transaction: has are those of the same keys, and places theirs. It also changes
// the tip, which is written with its operations.
type how func(at *tip, f Feed, records, has []table.Record, places []int64) ([]clientv3.Op, error)

// change changes the records that make returns of those that there are, in one transaction. It tries again while other
// nodes change the table. Its steps: read the tip and the records; compute the new ones; write both if the tip is
// unchanged. make may be called several times.
func (f Feed) change(
	ctx context.Context, life string, keys []string, how how,
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
		ops, err := how(&at, f, records, has, places)
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

// records are those of keys, and their places; the zero Record and 0 for one that is missing. It reads outside of the
// transaction that writes, which the tip protects.
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
			has[i], places[i], err = readPlaced(data)
			if err != nil {
				return nil, nil, err
			}
		}
	}
	return has, places, nil
}

// puts merges records, and advances the tip. A record that changes leaves its place and gets the next one, so each
// record is in the feed once.
func (at *tip) puts(f Feed, records, has []table.Record, places []int64) (ops []clientv3.Op, err error) {
	for i := range records {
		r := &records[i]
		at.Top = max(at.Top, r.Version)
		if !r.Above(&has[i]) {
			continue
		}
		if places[i] != 0 {
			ops = append(ops, clientv3.OpDelete(f.feedKey(places[i])))
		}
		at.Place++
		data, err := json.Marshal(placed{at.Place, r.Version, r.Ends, []byte(r.Key), []byte(r.Value)})
		if err != nil {
			return nil, err
		}
		ops = append(ops, clientv3.OpPut(f.feedKey(at.Place), string(data)),
			clientv3.OpPut(f.atKey(r.Key), string(data)))
	}
	return ops, nil
}

// drops drops records that still have their versions. The tip stays: places and versions of dropped records are never
// used again.
func (at *tip) drops(f Feed, records, has []table.Record, places []int64) (ops []clientv3.Op, err error) {
	for i := range records {
		if places[i] != 0 && records[i].Version == has[i].Version {
			ops = append(ops, clientv3.OpDelete(f.feedKey(places[i])), clientv3.OpDelete(f.atKey(records[i].Key)))
		}
	}
	return ops, nil
}

// put makes a change, unless the tip or the life is another one. done is false if another node was faster: then nothing
// was written.
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
	if err != nil {
		return false, f.failed(ctx, err)
	}
	if r.Header.ClusterId != cluster {
		return false, table.ErrLife
	}
	return r.Succeeded, nil
}

var _ table.Store = Feed{}
