package load

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// Recorded is demand that was seen, in the order of its arrival.
type Recorded struct {
	Requests []Request
	Keys     []string // by Request.Key
}

// mostRecorded bounds memory: a recorded request takes 40 bytes.
const mostRecorded = 20_000_000

// ReadRecorded reads demand that was recorded: CSV with the columns time, key and if there are more hits and node. A
// time is in seconds, or in RFC 3339. Requests need not be in order. Errors name the line. An example:
//
//	time,key,hits,node
//	12.345,customer-7,1,0
//	12.350,customer-9,3,2
func ReadRecorded(in io.Reader) (*Recorded, error) {
	r := recorder{seen: map[string]int{}}
	if err := r.read(in); err != nil {
		return nil, err
	}
	return r.finish()
}

type recorder struct {
	Recorded
	seen map[string]int
	at   []time.Duration // of each request, since the epoch
}

func (r *recorder) read(in io.Reader) error {
	rows := csv.NewReader(in)
	rows.FieldsPerRecord = -1
	rows.ReuseRecord = true
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("trace: %w", err)
		}
		n, _ := rows.FieldPos(0)
		if len(r.at) == 0 && row[0] == "time" {
			continue // the header
		}
		if len(row) < 2 || len(row) > 4 {
			return fmt.Errorf("trace line %d has %d columns: they are time, key, hits and node, of which the last two may be left out", n, len(row))
		}
		numbers := [2]int64{1, -1}
		for i, text := range row[2:] {
			numbers[i], err = strconv.ParseInt(text, 10, 64)
			if err != nil {
				return fmt.Errorf("trace line %d: %s is %q, must be a whole number", n, [2]string{"hits", "node"}[i], text)
			}
		}
		if err := r.add(row[0], row[1], numbers[0], numbers[1]); err != nil {
			return fmt.Errorf("trace line %d: %w", n, err)
		}
	}
}

// add adds the request of one line. Keys become numbers in the order of their first lines, so that a request is small.
func (r *recorder) add(when, key string, hits, node int64) error {
	at, err := parseWhen(when)
	if err != nil {
		return err
	}
	if hits < 1 || hits > 1e9 {
		return fmt.Errorf("hits is %d, must be 1 to 1e9", hits)
	}
	if node < -1 || node > 999 {
		return fmt.Errorf("node is %d, must be 0 to 999", node)
	}
	if len(r.at) >= mostRecorded {
		return fmt.Errorf("a trace may have %d requests", mostRecorded)
	}
	i, ok := r.seen[key]
	if !ok {
		if len(r.Keys) >= MaxKeys {
			return fmt.Errorf("a trace may have %d keys", MaxKeys)
		}
		i = len(r.Keys)
		r.seen[key] = i
		r.Keys = append(r.Keys, key)
	}
	r.Requests = append(r.Requests, Request{Key: i, Cost: hits, Node: int(node)})
	r.at = append(r.at, at)
	return nil
}

// parseWhen returns a time since the epoch. Seconds below 9e9 fit into a Duration, which ends after 292 years.
func parseWhen(when string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(when, 64); err == nil && seconds >= 0 && seconds < 9e9 {
		return time.Duration(seconds * 1e9), nil
	}
	t, err := time.Parse(time.RFC3339Nano, when)
	if err != nil || t.Unix() < 0 || t.Year() > 2250 {
		return 0, fmt.Errorf("time is %q, must be seconds such as 12.345, or like 2026-11-21T10:00:00.5Z", when)
	}
	return time.Duration(t.UnixNano()), nil
}

// finish puts the requests in order, the first at 0. The sort is stable: requests of one instant keep the order of
// their lines.
func (r *recorder) finish() (*Recorded, error) {
	if len(r.at) == 0 {
		return nil, errors.New("the trace has no requests")
	}
	first := slices.Min(r.at)
	for i, at := range r.at {
		r.Requests[i].At = at - first
	}
	slices.SortStableFunc(r.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return &r.Recorded, nil
}

// Load describes the demand as far as its player needs it. The length ends just after the last request.
func (r *Recorded) Load() Load {
	length := r.Requests[len(r.Requests)-1].At + 1
	return Load{Rate: float64(len(r.Requests)) / max(length.Seconds(), 0.001), Keys: len(r.Keys), Length: length}
}

// Play returns what [Stream.Next] is for a Load: the requests from the first on.
func (r *Recorded) Play() func() (Request, bool) {
	played := 0
	return func() (Request, bool) {
		if played == len(r.Requests) {
			return Request{}, false
		}
		played++
		return r.Requests[played-1], true
	}
}
