package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Record is AUDIT_FILE: a line for each event. It is safe for concurrent use.
type Record struct {
	file   *capped
	failed func(error)
}

// Open opens the file; nil: there is none.
func Open(name string, log *slog.Logger) (*Record, error) {
	if name == "" {
		return nil, nil
	}
	f, err := openCapped(name, auditBytes)
	if err != nil {
		return nil, fmt.Errorf("AUDIT_FILE is %q: %w", name, err)
	}
	failed := upkeep.Seldom(time.Minute, func(err error) { log.Error("AUDIT_FILE lacks events, or exceeds 64 MB", "error", err) })
	return &Record{f, failed}, nil
}

// Answer records the answer to a message of an audited rule, before the node spends a grant.
func (r *Record) Answer(rule *ratelimit.Rule, claim *account.Claim, g *account.Grant) {
	e := audit.NewEvent(rule, claim, g)
	r.write(&e)
}

func (r *Record) write(e *audit.Event) {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		r.failed(err)
	}
}

// auditBytes is how large an audit file gets before it is moved to NAME.1,
// whose content goes.
const auditBytes = 64 << 20

// capped is a file that starts anew when it is full. It is safe for concurrent
// use.
type capped struct {
	name string
	most int64
	mu   sync.Mutex
	file *os.File // guarded by mu
	size int64    // guarded by mu
	cut  bool     // guarded by mu; its last line has no end
}

func openCapped(name string, most int64) (*capped, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a pipe stays where it is
		most = math.MaxInt64
	}
	last := []byte("\n")
	_, _ = f.ReadAt(last, info.Size()-1)
	return &capped{name: name, most: most, file: f, size: info.Size(), cut: last[0] != '\n'}, nil
}

// Write appends one line, after the end of one that is cut off.
func (c *capped) Write(line []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var moved error
	if c.size > 0 && c.size+int64(len(line)) > c.most {
		if _, err := os.Lstat(c.name); err == nil {
			moved = os.Rename(c.name, c.name+".1") // a mount, for example, cannot be moved, and grows
		}
		f, err := os.OpenFile(c.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return 0, err
		}
		_ = c.file.Close()
		c.file = f
		c.size = 0
		c.cut = moved != nil && c.cut
	}
	if c.cut {
		line = append([]byte("\n"), line...)
	}
	n, err := c.file.Write(line)
	c.size, c.cut = c.size+int64(n), n < len(line) && n > 0 || n == 0 && c.cut
	return n, errors.Join(err, moved)
}
