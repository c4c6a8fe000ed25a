package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/holds"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// holdFlags are the keys by which nodes of a fleet accept each other's holds.
type holdFlags struct {
	Keys string                       `env:"HOLD_KEYS" name:"hold-keys" placeholder:"KEY,...|@FILE" help:"Secret keys that sign holds, separated by commas, the same at all nodes. @FILE reads them from a file, and again when it changes. Each has at least 16 random bytes (openssl rand -base64 32). New holds use the first key. Nodes accept holds of all keys. Default: a key from PEER_SECRET, or for a single node a random key."`
	read *upkeep.FileValue[time.Time] // when the file was read last; nil: there is none
}

// errNoHoldKeys is why rules of a fleet may not hold.
var errNoHoldKeys = errors.New("nodes that share a store need the same keys of holds: " +
	"set HOLD_KEYS at all nodes, or settle without an id (hold: {amount: N, on: [0, 1]})")

// file is the file that has the keys, if one has.
func (f *holdFlags) file() (name string, ok bool) { return strings.CutPrefix(f.Keys, "@") }

// readKeys reads a file and puts its keys in force. The desk keeps its keys if the new ones are bad.
func readKeys(name string, d *holds.Desk) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("HOLD_KEYS: %w", err)
	}
	if err := d.Set(string(text)); err != nil {
		return fmt.Errorf("HOLD_KEYS, file %s: %w", name, err)
	}
	return nil
}

// follow reads the file again whenever it changes, until ctx is done. A bad file is logged, and the previous keys stay.
// Get returns the time of the last good reading: if it is now, the file was read just now.
func (f *holdFlags) follow(ctx context.Context, log *slog.Logger) {
	if f.read == nil {
		return
	}
	f.read.Failed = upkeep.Seldom(time.Minute, func(err error) {
		log.Error("the new keys of holds are bad: the previous keys stay in use", "error", err)
	})
	upkeep.Every(ctx, time.Second, func() {
		if now := time.Now(); f.read.Get(now).Equal(now) {
			log.Info("the keys of holds were read again", "file", f.read.Files[0])
		}
	})
}
