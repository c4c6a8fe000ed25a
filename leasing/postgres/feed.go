package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

//go:embed feed.sql
var feedSQL string

// Feed is a [table.Store] in the database of a [Store], which must be prepared first.
type Feed struct{ *Store }

// The life is that of the rows, and of the server: also another start of it is another one, because a copy of its
// volume has the same timeline.
const (
	feedLife = `f.life || '-' || ` + life + ` || '-' || extract(epoch FROM pg_postmaster_start_time())`
	feedNow  = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

	// Several nodes can begin the feed: the first row counts.
	beginFeedSQL = `INSERT INTO sluice_feed (prefix, life, place, top)
VALUES ($1, md5(random()::text || clock_timestamp()::text), 0, 0) ON CONFLICT DO NOTHING`
	// Places only rise in one life. A lower one is that of an older copy, which was restored in place.
	anotherFeedSQL = `UPDATE sluice_feed SET life = md5(random()::text || clock_timestamp()::text)
WHERE prefix = $1 AND place < $2`
	// As in readSQL, there is a row for the life without any record.
	sinceSQL = `SELECT ` + feedLife + `, ` + feedNow + `, f.place, r.key, r.version, r.ends, r.value, r.place
FROM sluice_feed f LEFT JOIN (
  SELECT * FROM sluice_table WHERE prefix = $1 AND place > $2 ORDER BY prefix, place LIMIT $3
) r ON true WHERE f.prefix = $1 ORDER BY r.place`
	// The lock on the feed's row makes changes one after the other: places are committed in order, and readers miss
	// none.
	lockFeedSQL = `SELECT ` + feedLife + `, ` + feedNow + `, f.place, f.top
FROM sluice_feed f WHERE prefix = $1 FOR UPDATE`
	isSQL = `SELECT version, ends, value FROM sluice_table WHERE prefix = $1 AND key = $2`
	// A record that is not above the present one changes nothing: it keeps the present one's place.
	putSQL = `INSERT INTO sluice_table AS t (prefix, key, version, ends, value, place)
SELECT $1, c.key, c.version, c.ends, c.value, $2 + c.n
FROM unnest($3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[]) WITH ORDINALITY c(key, version, ends, value, n)
ON CONFLICT (prefix, key) DO UPDATE SET version = excluded.version, ends = excluded.ends, value = excluded.value,
  place = excluded.place
WHERE (excluded.version, excluded.ends, excluded.value) > (t.version, t.ends, t.value)`
	placeSQL = `UPDATE sluice_feed SET place = $2, top = greatest(top, $3) WHERE prefix = $1`
	// A record with another version has changed meanwhile, and stays.
	dropSQL = `DELETE FROM sluice_table t USING unnest($2::bytea[], $3::bigint[]) c(key, version)
WHERE t.prefix = $1 AND t.key = c.key AND t.version = c.version`
)

// Since implements [table.Store]. In another life than the caller's, it begins with the first place.
func (f Feed) Since(ctx context.Context, life string, after int64, n int) (p table.Page, err error) {
	if !f.prepared.Load() {
		return p, errUnprepared
	}
	// A later attempt finds the row, or the other life, of this node or of another.
	for err == nil {
		page, last, failed := f.since(ctx, after, n)
		err = failed
		switch {
		case err != nil:
		case page.Life == "": // there is no row, or no more
			_, err = f.pool.Exec(ctx, beginFeedSQL, f.prefix)
		case page.Life == life && last < after:
			_, err = f.pool.Exec(ctx, anotherFeedSQL, f.prefix, after)
		case page.Life != life && after != 0:
			return f.Since(ctx, page.Life, 0, n)
		default:
			return page, nil
		}
	}
	return p, fmt.Errorf("postgres: %w", err)
}

// since reads one page, in any life; "": there is none yet. n records may be all, and More then costs one empty page.
// last is the place of the last change.
func (f Feed) since(ctx context.Context, after int64, n int) (p table.Page, last int64, err error) {
	rows, err := f.pool.Query(ctx, sinceSQL, f.prefix, after, n)
	if err != nil {
		return p, 0, err
	}
	var key, value []byte
	var version, ends, place *int64
	p.Place = after
	_, err = pgx.ForEachRow(rows, []any{&p.Life, &p.Now, &last, &key, &version, &ends, &value, &place}, func() error {
		if place != nil {
			p.Records, p.Place = append(p.Records, recordOf(key, *version, *ends, value)), *place
		}
		return nil
	})
	p.More = len(p.Records) == n
	return p, last, err
}

func recordOf(key []byte, version, ends int64, value []byte) table.Record {
	return table.Record{
		Key: string(key), Value: string(value),
		Version: ratelimit.LedgerTime(version), Ends: ratelimit.LedgerTime(ends),
	}
}

// feed is the state of the table, in a transaction that has its lock. place and top are as read, until put.
type feed struct {
	tx         pgx.Tx
	prefix     string
	now        ratelimit.LedgerTime
	place, top int64
}

// locked does something with the table that no other node changes meanwhile, in a life. The transaction ends with do:
// its error takes all changes back.
func (f Feed) locked(ctx context.Context, life string, do func(*feed) error) error {
	if !f.prepared.Load() {
		return errUnprepared
	}
	err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		x, is := feed{tx: tx, prefix: f.prefix}, ""
		// It waits for the changes of other nodes.
		err := tx.QueryRow(ctx, lockFeedSQL, f.prefix).Scan(&is, &x.now, &x.place, &x.top)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && is != life {
			return table.ErrLife
		}
		if err != nil {
			return err
		}
		return do(&x)
	})
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// put merges records. A record gets a place also if it loses against the one that is there. Gaps between places do no
// harm.
func (x *feed) put(ctx context.Context, records []table.Record) error {
	n := len(records)
	keys, values := make([][]byte, n), make([][]byte, n)
	versions, ends := make([]int64, n), make([]int64, n)
	for i := range records {
		r := &records[i]
		keys[i] = []byte(r.Key)
		values[i] = []byte(r.Value)
		versions[i] = int64(r.Version)
		ends[i] = int64(r.Ends)
		x.top = max(x.top, versions[i])
	}
	var b pgx.Batch
	b.Queue(putSQL, x.prefix, x.place, keys, versions, ends, values)
	b.Queue(placeSQL, x.prefix, x.place+int64(n), x.top)
	return x.tx.SendBatch(ctx, &b).Close()
}

// Merge implements [table.Store]. All of them are one transaction, and their places follow each other.
func (f Feed) Merge(ctx context.Context, life string, records []table.Record) error {
	return f.locked(ctx, life, func(x *feed) error { return x.put(ctx, records) })
}

// Drop implements [table.Store].
func (f Feed) Drop(ctx context.Context, life string, records []table.Record) error {
	keys, versions := make([][]byte, len(records)), make([]int64, len(records))
	for i := range records {
		keys[i], versions[i] = []byte(records[i].Key), int64(records[i].Version)
	}
	return f.locked(ctx, life, func(x *feed) error {
		_, err := x.tx.Exec(ctx, dropSQL, f.prefix, keys, versions)
		return err
	})
}

// Set implements [table.Store]. The version is above all earlier ones, also of records that were dropped.
func (f Feed) Set(
	ctx context.Context, life string, r table.Record, expected table.Expected,
) (is table.Record, err error) {
	err = f.locked(ctx, life, func(x *feed) error {
		var version, ends int64
		var value []byte
		err := x.tx.QueryRow(ctx, isSQL, f.prefix, []byte(r.Key)).Scan(&version, &ends, &value)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		is = recordOf([]byte(r.Key), version, ends, value)
		if !is.Is(expected, x.now) {
			return table.ErrChanged
		}
		r.Version = max(x.now, ratelimit.LedgerTime(x.top)+1)
		is = r
		return x.put(ctx, []table.Record{r})
	})
	return is, err
}

var _ table.Store = Feed{}
