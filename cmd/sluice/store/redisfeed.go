package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

//go:embed feed.lua
var feedLua string

var feedScript = redis.NewScript(feedLua)

// redisFeed is a [table.Store] in Redis: single, Sentinel or Cluster. It is a hash and a sorted set, in one slot. It is
// safe for concurrent use. feed.lua has the form of the data, and its rules. keys are the hash and the sorted set.
// Their common tag in braces keeps both on one server of a Cluster, so that a script may use both.
type redisFeed struct {
	client redis.UniversalClient
	keys   []string
}

// newRedisFeed makes the feed of a fleet with that prefix.
func newRedisFeed(client redis.UniversalClient, prefix string) *redisFeed {
	name := prefix + "{sluice:table}"
	return &redisFeed{client, []string{name, name + "feed"}}
}

// run runs the script. The answer begins with the life, and has n parts, unless it is of another life. The script runs
// on one server in one step, so a change and its place in the feed are never apart. A short answer is table.ErrLife:
// the caller's life is over, and it reads all records anew.
func (f *redisFeed) run(ctx context.Context, op, life string, n int, args ...any) ([]any, error) {
	// The id comes from here: Redis gives a script the same random numbers in each run.
	id := strconv.FormatUint(rand.Uint64(), 16) // of a new life, if one begins
	answer, err := feedScript.Run(ctx, f.client, f.keys,
		append([]any{op, life, id}, args...)...).Slice()
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	if len(answer) == 1 {
		return nil, table.ErrLife
	}
	if len(answer) != n {
		return nil, fmt.Errorf("%w: %d parts of a table, must be %d", account.ErrAnswer, len(answer), n)
	}
	return answer, nil
}

// Since implements [table.Store]. Answer: life, time, place, keys, records. Numbers come as texts.
func (f *redisFeed) Since(ctx context.Context, life string, after int64, n int) (p table.Page, err error) {
	answer, err := f.run(ctx, "since", life, 5, after, n)
	if err != nil {
		return p, err
	}
	now, err1 := strconv.ParseInt(fmt.Sprint(answer[1]), 10, 64)
	place, err2 := strconv.ParseInt(fmt.Sprint(answer[2]), 10, 64)
	keys, _ := answer[3].([]any)
	values, _ := answer[4].([]any)
	if err := errors.Join(err1, err2); err != nil || len(values) != len(keys) {
		return p, errors.Join(account.ErrAnswer, err)
	}
	p = table.Page{Life: fmt.Sprint(answer[0]), Now: ratelimit.LedgerTime(now), Place: place, More: len(keys) == n}
	for i := range keys {
		r, err := readRecord(fmt.Sprint(keys[i]), values[i])
		if err != nil {
			return table.Page{}, err
		}
		p.Records = append(p.Records, r)
	}
	return p, nil
}

// readRecord reads "version ends value". Example: "1764500000000000 0 5000" is a version in microseconds, no end, and a
// value. The value may have spaces, so only the first two separate.
func readRecord(key string, text any) (r table.Record, err error) {
	version, rest, _ := strings.Cut(fmt.Sprint(text), " ")
	ends, value, ok := strings.Cut(rest, " ")
	v, err1 := strconv.ParseInt(version, 10, 64)
	e, err2 := strconv.ParseInt(ends, 10, 64)
	if err := errors.Join(err1, err2); err != nil || !ok {
		return r, fmt.Errorf("%w: a record of a table: %.40q", account.ErrAnswer, text)
	}
	return table.Record{Key: key, Version: ratelimit.LedgerTime(v), Ends: ratelimit.LedgerTime(e), Value: value}, nil
}

// Merge implements [table.Store].
func (f *redisFeed) Merge(ctx context.Context, life string, records []table.Record) error {
	var args []any
	for i := range records {
		r := &records[i]
		args = append(args, r.Key, int64(r.Version), int64(r.Ends), r.Value)
	}
	_, err := f.run(ctx, "merge", life, 3, args...)
	return err
}

// Drop implements [table.Store].
func (f *redisFeed) Drop(ctx context.Context, life string, records []table.Record) error {
	var args []any
	for i := range records {
		args = append(args, records[i].Key, int64(records[i].Version))
	}
	_, err := f.run(ctx, "drop", life, 3, args...)
	return err
}

// Set implements [table.Store]. Answer: life, "changed" or "", and the record as it is now (nil: there is none). On
// ErrChanged, that record is the other one, for the caller to show.
func (f *redisFeed) Set(
	ctx context.Context, life string, r table.Record, expected table.Expected,
) (is table.Record, err error) {
	answer, err := f.run(ctx, "set", life, 3, r.Key, int64(expected), int64(r.Ends), r.Value)
	if err != nil {
		return is, err
	}
	if answer[2] != nil {
		is, err = readRecord(r.Key, answer[2])
		if err != nil {
			return is, err
		}
	}
	if answer[1] != "" {
		err = table.ErrChanged
	}
	return is, err
}

var _ table.Store = (*redisFeed)(nil)
