package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/holds"
)

// holdFlags are the keys by which nodes of a fleet accept each other's holds.
type holdFlags struct {
	Keys string    `env:"HOLD_KEYS" name:"hold-keys" placeholder:"KEY,..." help:"Keys of holds, separated by commas, the same at all nodes. Each has at least 16 random bytes (openssl rand -base64 32). New holds use the first key, and holds of all keys are accepted. Default: a key from PEER_SECRET, or a random key of a single node."`
	File string    `env:"HOLD_KEYS_FILE" name:"hold-keys-file" placeholder:"FILE" help:"File with the keys of holds, like HOLD_KEYS. It is read again when it changes."`
	seen fileState // of File; only follow uses it once it runs
}

// errNoHoldKeys is why rules of a fleet may not hold.
var errNoHoldKeys = errors.New("nodes that share a store need the same keys of holds: " +
	"set HOLD_KEYS or HOLD_KEYS_FILE at all nodes, or settle without an id (hold: {amount: N, on: [0, 1]})")

// mostKeyFile is in bytes.
const mostKeyFile = 4 << 10

// desk makes the desk where holds are made and settled. noKeys says why rules may not hold; nil: they may.
func (c *serveCmd) desk() (d *holds.Desk, noKeys, err error) {
	d = new(holds.Desk)
	switch {
	case c.Holds.Keys != "" && c.Holds.File != "":
		return nil, nil, errors.New("HOLD_KEYS and HOLD_KEYS_FILE are set: set one of them")
	case c.Holds.File != "":
		c.Holds.seen = stateOf(c.Holds.File) // a change from here on is read again
		if err := c.Holds.read(d); err != nil {
			return nil, nil, err
		}
	case c.Holds.Keys != "":
		if err := d.Set(c.Holds.Keys); err != nil {
			return nil, nil, fmt.Errorf("HOLD_KEYS: %w", err)
		}
	case c.Ring.Peers != "" && c.Ring.Secret != "":
		d.SetOne([]byte(c.Ring.Secret))
	case c.Store.Shared() || c.Ring.Peers != "":
		return d, errNoHoldKeys, nil
	default: // budgets end with this process, and so do holds
		d.SetOne([]byte(rand.Text()))
	}
	return d, nil, nil
}

func (f *holdFlags) read(d *holds.Desk) error {
	file, err := os.Open(f.File)
	if err != nil {
		return fmt.Errorf("HOLD_KEYS_FILE: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, mostKeyFile))
	if err == nil {
		err = d.Set(string(text))
	}
	if err != nil {
		return fmt.Errorf("HOLD_KEYS_FILE %s: %w", f.File, err)
	}
	return nil
}

// follow reads the file again whenever it changes, until ctx is done. A bad file is logged, and the previous
// keys stay.
func (f *holdFlags) follow(ctx context.Context, d *holds.Desk, log *slog.Logger) {
	if f.File == "" {
		return
	}
	every(ctx, time.Second, func() {
		now := stateOf(f.File)
		if now == f.seen {
			return
		}
		f.seen = now
		if err := f.read(d); err != nil {
			log.Error("the new keys of holds are bad: the previous keys stay in use", "error", err)
		} else {
			log.Info("the keys of holds were read again", "file", f.File)
		}
	})
}
