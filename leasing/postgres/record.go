package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

var eventColumns = []string{
	"prefix", "at", "rule", "key", "kind", "holder", "window_number", "window_ends", "fence", "taken", "spent", "total",
	"granted", "need", "of_limit", "bound", "sum", "in_hand", "cut", "reason",
}

// record writes the audit events of the changes that were made.
func (s *Store) record(ctx context.Context, tx pgx.Tx, changes []account.Change, made []bool) error {
	var rows [][]any
	for i := range changes {
		if !made[i] {
			continue
		}
		for j := range changes[i].Events {
			e := &changes[i].Events[j]
			var ends *time.Time
			if e.Ends != 0 {
				t := timeOf(e.Ends)
				ends = &t
			}
			rows = append(rows, []any{
				s.prefix, timeOf(e.At), e.Rule, e.Key, e.Kind, e.Holder, int64(e.Window), ends, int64(e.Fence),
				int64(e.Taken), int64(e.Spent), int64(e.Total), int64(e.Granted), int64(e.Need), int64(e.Limit),
				int64(e.Bound), int64(e.Sum), int64(e.InHand), int64(e.Cut), e.Reason,
			})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"sluice_events"}, eventColumns, pgx.CopyFromRows(rows))
	if err != nil {
		return fmt.Errorf("postgres: writing the audit record: %w", err)
	}
	return nil
}

func timeOf(at ratelimit.LedgerTime) time.Time { return time.UnixMicro(int64(at)).UTC() }

// Events calls see with all that is on record of the nodes with this prefix, the oldest of each key first.
func (s *Store) Events(ctx context.Context, see func(*account.Event)) error {
	rows, err := s.pool.Query(ctx, `SELECT (extract(epoch FROM at) * 1000000)::bigint, rule, key, kind, holder,
  window_number, coalesce((extract(epoch FROM window_ends) * 1000000)::bigint, 0),
  fence, taken, spent, total, granted, need, of_limit, bound, sum, in_hand, cut,
  coalesce(reason, '')
FROM sluice_events WHERE prefix = $1 ORDER BY key, id`, s.prefix)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	var e account.Event
	_, err = pgx.ForEachRow(rows, []any{
		&e.At, &e.Rule, &e.Key, &e.Kind, &e.Holder, &e.Window, &e.Ends, &e.Fence, &e.Taken, &e.Spent, &e.Total,
		&e.Granted, &e.Need, &e.Limit, &e.Bound, &e.Sum, &e.InHand, &e.Cut, &e.Reason,
	}, func() error {
		one := e
		see(&one)
		return nil
	})
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// Forget deletes events from before a time.
func (s *Store) Forget(ctx context.Context, before time.Time) error {
	_, err := s.pool.Exec(ctx, "DELETE FROM sluice_events WHERE prefix = $1 AND at < $2", s.prefix, before)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}
