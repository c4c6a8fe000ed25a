package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// mostBytes is how large a record gets before it is moved to NAME.1, whose content goes.
const mostBytes = 64 << 20

// Record is AUDIT_FILE: a line for each event. It starts anew when it is full. It is safe for concurrent use. A line is
// an Event in JSON. A full file becomes NAME.1.
type Record struct {
	name string
	most int64
	// failed is called for each event that could not be written, and must be cheap.
	failed func(error)

	mu   sync.Mutex
	file *os.File // guarded by mu
	size int64    // guarded by mu
	cut  bool     // guarded by mu; its last line has no end
}

// OpenRecord opens the file; nil: there is none.
func OpenRecord(name string, log *slog.Logger) (*Record, error) {
	if name == "" {
		// The caller then records nothing.
		return nil, nil
	}
	r, err := openRecord(name, mostBytes)
	if err != nil {
		return nil, fmt.Errorf("AUDIT_FILE is %q: %w", name, err)
	}
	r.failed = upkeep.Seldom(time.Minute, func(err error) {
		log.Error("AUDIT_FILE lacks events, or exceeds 64 MB", "error", err)
	})
	return r, nil
}

func openRecord(name string, most int64) (*Record, error) {
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
	// An empty file, or a pipe, has no last byte, and needs no line's end.
	_, _ = f.ReadAt(last, info.Size()-1)
	return &Record{name: name, most: most, file: f, size: info.Size(), cut: last[0] != '\n'}, nil
}

// Answer records the answer to a message of an audited rule, before the node spends a grant. It blocks for a write to
// the file, and not for the disk: a crash of the machine may lose the last events.
func (r *Record) Answer(rule *ratelimit.Rule, claim *account.Claim, g *account.Grant) {
	e := NewEvent(rule, claim, g)
	r.add(&e)
}

func (r *Record) add(e *Event) {
	// An error does not keep the node from spending: limits are kept, and the record has a gap.
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.write(append(line, '\n'))
	}
	if err != nil {
		r.failed(err)
	}
}

// write appends one line, after the end of one that is cut off. A full file becomes NAME.1, in place of the one before.
// If it cannot be moved, it grows, and the error is reported. Nodes go on in any case.
func (r *Record) write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var moved error
	if r.size > 0 && r.size+int64(len(line)) > r.most {
		// Another program, such as logrotate, may have moved it.
		if _, err := os.Lstat(r.name); err == nil {
			moved = os.Rename(r.name, r.name+".1") // a mount, for example, cannot be moved, and grows
		}
		f, err := os.OpenFile(r.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return 0, err
		}
		_ = r.file.Close()
		r.file = f
		r.size = 0
		// A new file has no line that is cut off.
		r.cut = moved != nil && r.cut
	}
	if r.cut {
		line = append([]byte("\n"), line...)
	}
	n, err := r.file.Write(line)
	// A full disk writes a part of a line. The next event begins another one, so only one line is lost.
	r.size, r.cut = r.size+int64(n), n < len(line) && n > 0 || n == 0 && r.cut
	return n, errors.Join(err, moved)
}

// ReadFile reads the events of a record. missing names lines that a full disk or a crash has cut off. A file without
// any event is an error, because it is most likely another file.
func ReadFile(name string) (all []Event, missing []string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, mostBytes) // after a crash, the end of a file may be zeros
	for n := 1; lines.Scan(); n++ {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Kind == "" {
			missing = append(missing, fmt.Sprintf("%s:%d is not an event of AUDIT_FILE", name, n))
			continue
		}
		all = append(all, e)
	}
	if len(all) == 0 && len(missing) > 0 {
		return nil, nil, errors.New(missing[0])
	}
	return all, missing, lines.Err()
}
