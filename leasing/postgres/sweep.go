package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A partition has the accounts that end within ten minutes. Buckets have partition 0, because they have no end of their
// own.
const partitionWidth = ratelimit.LedgerTime(10 * time.Minute / time.Microsecond)

const partitionPrefix = "sluice_accounts_"

func partitionName(n int64) string { return partitionPrefix + strconv.FormatInt(n, 10) }

func partitionOf(over ratelimit.LedgerTime) int64 { return int64(over / partitionWidth) }

// partitions makes the partitions of changes, which then stay. It is for windows that widen has not foreseen, such as
// months, and for a node whose Drop failed.
func (s *Store) partitions(ctx context.Context, changes []account.Change) error {
	var all []int64
	for i := range changes {
		// Partition 0 is a part of the schema.
		if over := changes[i].Over; over > 0 {
			all = append(all, partitionOf(over))
		}
	}
	return s.add(ctx, all)
}

// widen makes the partitions of the near future, so that no request waits for one. The accounts of the current window
// of an hour or a day end two periods from its beginning.
func (s *Store) widen(ctx context.Context) error {
	var now ratelimit.LedgerTime
	err := s.pool.QueryRow(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&now)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	first := partitionOf(now)
	all := []int64{first, first + 1, first + 2, first + 3}
	for _, period := range []time.Duration{time.Hour, 24 * time.Hour} {
		p := ratelimit.LedgerTime(period / time.Microsecond)
		all = append(all, partitionOf((now/p+2)*p))
	}
	return s.add(ctx, all)
}

// add makes partitions, unless they exist. Each is a transaction of its own under a lock of all nodes, because two of
// them can find the same one missing.
func (s *Store) add(ctx context.Context, all []int64) error {
	slices.Sort(all)
	for _, n := range slices.Compact(all) {
		// Attaching a table blocks no query. Creating it as a partition would.
		name := partitionName(n)
		// The range of partition 0 ends at 1.
		from, to := max(1, n*int64(partitionWidth)), (n+1)*int64(partitionWidth)
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockSchema)); err != nil {
				return err
			}
			// to_regclass may answer from a cache that is older than the wait for the lock.
			var there bool
			err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent = 'sluice_accounts'::regclass AND c.relname = $1)`, name).Scan(&there)
			if err != nil || there {
				return err
			}
			_, err = tx.Exec(ctx, fmt.Sprintf(`CREATE TABLE %[1]s (LIKE sluice_accounts INCLUDING ALL)
  WITH (fillfactor = 70);
ALTER TABLE %[1]s ADD CHECK (over >= %[2]d AND over < %[3]d);
ALTER TABLE sluice_accounts ATTACH PARTITION %[1]s FOR VALUES FROM (%[2]d) TO (%[3]d)`, name, from, to))
			return err
		})
		if err != nil {
			return fmt.Errorf("postgres: making the partition %s: %w", name, err)
		}
	}
	return nil
}

// dropMost bounds the rows of buckets that one call deletes. If there were as many, there may be more (Store.Drop).
const dropMost = 10_000

// Drop implements [account.Store]: it drops whole partitions, and deletes full buckets one by one. If several nodes
// call it at once, one does it. It gives up tables that stay in use for longer than a moment. A table in use ends the
// call with an error, and the next call tries again.
func (s *Store) Drop(ctx context.Context, before ratelimit.LedgerTime) (n int, more bool, err error) {
	if !s.prepared.Load() {
		return 0, false, errUnprepared
	}
	if err := s.widen(ctx); err != nil {
		return 0, false, err
	}
	err = s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			var mine bool
			err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", int64(lockSweep)).Scan(&mine)
			if err != nil || !mine {
				return err
			}
			// A DROP that waits for a lock lets all later messages wait behind it. The scan of full buckets has no
			// index.
			if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '200ms'; SET LOCAL enable_seqscan = on"); err != nil {
				return err
			}
			// Both are in one transaction, and a failure leaves all of it for the next call.
			n, err = dropPartitions(ctx, tx, before)
			if err != nil {
				return err
			}
			gone, err := tx.Exec(ctx, `DELETE FROM sluice_accounts_0 WHERE ctid = ANY(ARRAY(
SELECT ctid FROM sluice_accounts_0 WHERE until <= $1 LIMIT $2))`, int64(before), dropMost)
			n += int(gone.RowsAffected())
			more = gone.RowsAffected() == dropMost
			return err
		})
	})
	if err != nil {
		return 0, false, fmt.Errorf("postgres: dropping accounts that are over: %w", err)
	}
	return n, more, nil
}

// dropPartitions drops the ended partitions. It returns their number of rows, as PostgreSQL estimates it. Names of
// other tables have no number, and are left alone.
func dropPartitions(ctx context.Context, tx pgx.Tx, before ratelimit.LedgerTime) (rows int, err error) {
	found, err := tx.Query(ctx, `SELECT c.relname, greatest(c.reltuples, 0)::bigint
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'sluice_accounts'::regclass`)
	if err != nil {
		return 0, err
	}
	var over []string
	var name string
	var n int
	if _, err := pgx.ForEachRow(found, []any{&name, &n}, func() error {
		number, err := strconv.ParseInt(strings.TrimPrefix(name, partitionPrefix), 10, 64)
		// The partition ends with its last window, and nothing in it is read after that.
		if err == nil && number > 0 && ratelimit.LedgerTime(number+1)*partitionWidth <= before {
			over = append(over, name)
			rows += n
		}
		return nil
	}); err != nil {
		return 0, err
	}
	for _, name := range over {
		if _, err := tx.Exec(ctx, "DROP TABLE "+pgx.Identifier{name}.Sanitize()); err != nil {
			return 0, err
		}
	}
	return rows, nil
}
