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

// ReadRecorded reads demand that was recorded: CSV with the columns time, key and if there are more hits and node. A
// time is in seconds, or in RFC 3339. Requests need not be in order. Errors name the line. An example:
//
//	time,key,hits,node
//	12.345,customer-7,1,0
//	12.350,customer-9,3,2
func ReadRecorded(in io.Reader) (*Recorded, error) {
	r := &Recorded{}
	numbers := map[string]int{} // of keys, in the order of their first lines
	rows := csv.NewReader(in)
	rows.FieldsPerRecord = -1
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		if len(r.Requests) == 0 && row[0] == "time" {
			continue // the header
		}
		q, err := parseRequest(row)
		if err != nil {
			line, _ := rows.FieldPos(0)
			return nil, fmt.Errorf("trace line %d: %w", line, err)
		}
		key, known := numbers[row[1]]
		if !known {
			key = len(r.Keys)
			numbers[row[1]] = key
			r.Keys = append(r.Keys, row[1])
		}
		q.Key = key
		r.Requests = append(r.Requests, q)
	}
	if len(r.Requests) == 0 {
		return nil, errors.New("the trace has no requests")
	}
	// The sort is stable: requests of one instant keep the order of their lines. The first is at 0.
	slices.SortStableFunc(r.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	first := r.Requests[0].At
	for i := range r.Requests {
		r.Requests[i].At -= first
	}
	return r, nil
}

// parseRequest reads a line without its key. The time is since the epoch.
func parseRequest(row []string) (q Request, err error) {
	if len(row) < 2 || len(row) > 4 {
		return q, fmt.Errorf("%d columns: they are time, key, hits and node, of which the last two may be left out", len(row))
	}
	hits, node := int64(1), int64(-1)
	at, err := parseWhen(row[0])
	if err == nil && len(row) > 2 {
		hits, err = parseWhole("hits", row[2], 1, 1e9)
	}
	if err == nil && len(row) > 3 {
		node, err = parseWhole("node", row[3], -1, 999)
	}
	return Request{At: at, Cost: hits, Node: int(node)}, err
}

func parseWhole(name, text string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s is %q, must be a whole number from %d to %d", name, text, least, most)
	}
	return n, nil
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
