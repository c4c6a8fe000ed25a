package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing/account"
)

// read returns all events, and the known gaps.
func (c *auditCmd) read() (all []account.Event, missing []string, err error) {
	for _, name := range c.Files {
		if err = readFile(name, &all); err != nil {
			return all, nil, err
		}
	}
	if len(c.Files) > 0 {
		return all, nil, nil
	}
	if !c.Store.Shared() {
		return all, nil, errors.New("set STORE_URL or REDIS_URL to the store of the nodes, or name the files of AUDIT_FILE")
	}
	s, err := store.Open(store.Options{Flags: c.Store, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return all, nil, err
	}
	defer s.Close()
	missing, err = s.Events(context.Background(), func(e *account.Event) { all = append(all, *e) })
	if err != nil {
		return all, nil, fmt.Errorf("reading the record: %s: %w", s.Advise(err), err)
	}
	return all, missing, nil
}

func readFile(name string, all *[]account.Event) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var e account.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Kind == "" {
			return fmt.Errorf("%s:%d is not an event of AUDIT_FILE: %w", name, n, errors.Join(err))
		}
		*all = append(*all, e)
	}
	return lines.Err()
}
