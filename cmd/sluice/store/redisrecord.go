package store

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
)

// Events implements [Store]: it reads the streams of the accounts.
func (s *inRedis) Events(ctx context.Context, see func(*account.Event)) (missing []string, err error) {
	r := streamReader{client: s.people, prefix: s.flags.KeyPrefix}
	if err := r.all(ctx); err != nil {
		return nil, err
	}
	for i := range r.events {
		see(&r.events[i])
	}
	return r.missing, nil
}

// streamReader reads the streams of all audited accounts.
type streamReader struct {
	client  redis.UniversalClient
	prefix  string
	mu      sync.Mutex
	events  []account.Event // guarded by mu
	missing []string        // guarded by mu
	seen    sync.Map        // names: SCAN can repeat one, and two servers have one on its way between them
}

func (r *streamReader) all(ctx context.Context) error {
	if cluster, ok := r.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return r.scan(ctx, node) })
	}
	return r.scan(ctx, r.client)
}

// scan reads the streams of one server, whose names it finds a few at a time.
func (r *streamReader) scan(ctx context.Context, node redis.UniversalClient) error {
	names := node.Scan(ctx, 0, account.RecordName(globLiteral(r.prefix), "*"), 1000).Iterator()
	for names.Next(ctx) {
		if _, again := r.seen.LoadOrStore(names.Val(), true); again {
			continue
		}
		if err := r.stream(ctx, node, names.Val()); err != nil {
			return err
		}
	}
	return names.Err()
}

// globLiteral is text for a pattern that matches nothing else.
func globLiteral(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// entriesOf reads a stream in pages: all of it may be more than one answer may be.
func entriesOf(ctx context.Context, node redis.UniversalClient, name string) (all []redis.XMessage, err error) {
	const page = 1000
	for from := "-"; ; from = "(" + all[len(all)-1].ID {
		some, err := node.XRangeN(ctx, name, from, "+", page).Result()
		if all = append(all, some...); err != nil || len(some) < page {
			return all, err
		}
	}
}

func (r *streamReader) stream(ctx context.Context, node redis.UniversalClient, name string) error {
	info, err := node.XInfoStream(ctx, name).Result()
	if err != nil {
		return err
	}
	entries, err := entriesOf(ctx, node, name)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch gone := info.EntriesAdded - int64(len(entries)); {
	case gone > 0:
		r.missing = append(r.missing, fmt.Sprintf("%s: the first %d events have expired, and its oldest window may lack some", name, gone))
	case info.EntriesAdded == 0 && len(entries) >= account.EventsKept: // Redis before 7 does not count them
		r.missing = append(r.missing, name+": the first events may have expired, and its oldest window may lack some")
	}
	for _, entry := range entries {
		e, err := account.ReadEvent(r.prefix, entry.Values)
		if err != nil {
			return fmt.Errorf("%s, entry %s: %w", name, entry.ID, err)
		}
		r.events = append(r.events, e)
	}
	return nil
}
