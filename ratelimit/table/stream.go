package table

import (
	"encoding/binary"
	"fmt"
)

// Stream is what a node sends of its table to one peer, where there is no store: first all, then each change. Of each
// connection it is another one. It is not safe for concurrent use; its table is.
//
// Nodes of one table merge what arrives, and send on what changed theirs. So all that are connected, directly or not,
// come to the same table. It is lost when all of them end. A node that was apart for more than an hour ([Kept]) can
// bring back what was removed meanwhile. Both sides of a fleet that was cut in two may be right.
type Stream struct {
	table *Table
	place int64
}

// NewStream begins with the whole table.
func NewStream(t *Table) *Stream { return &Stream{table: t} }

const (
	// messageRecords bounds a message: also of the longest records, it has at most 280 KB.
	messageRecords = 64
	// farthest bounds the version of a peer's record: the year 2112, which no clock shows. After a record of the end of
	// time, no other could be set. This node's clock has no part in it: a record is sent once, and the clock may be set
	// afterwards.
	farthest = latest / 2
)

// Next is the next message; nil: the peer was sent all.
func (s *Stream) Next() []byte {
	for {
		records, place, more := s.table.Since(s.place, messageRecords)
		s.place = place
		if len(records) > 0 || !more {
			return encode(records)
		}
	}
}

// encode writes records one after the other, as key, version, end and value. Numbers are varints, and texts have their
// length before them.
func encode(records []Record) (b []byte) {
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	for i := range records {
		r := &records[i]
		text(r.Key)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(r.Version)), uint64(r.Ends))
		text(r.Value)
	}
	return b
}

// Receive handles a message of a peer, at a time of this node's clock ([Alone]). One that makes no sense changes
// nothing, and is counted.
func (t *Table) Receive(message []byte, now instant) error {
	records, err := decode(message)
	if err != nil {
		t.Rejected.Add(1)
		return err
	}
	t.Merge(records, now)
	return nil
}

// decode reads what encode writes. A message is accepted as a whole or not at all.
func decode(b []byte) (records []Record, err error) {
	number := func() (v uint64) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err, b = ErrRecord, nil
			return 0
		}
		b = b[n:]
		return v
	}
	text := func() (s string) {
		n := number()
		if n > uint64(len(b)) {
			err, b = ErrRecord, nil
			return ""
		}
		s, b = string(b[:n]), b[n:]
		return s
	}
	for len(b) > 0 && err == nil {
		if len(records) == messageRecords {
			return nil, fmt.Errorf("%w: a message has more than %d", ErrRecord, messageRecords)
		}
		r := Record{Key: text(), Version: instant(number()), Ends: instant(number())}
		r.Value = text()
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: a message ends within one", err)
		case r.Check() != nil:
			return nil, r.Check()
		case r.Version > farthest:
			return nil, fmt.Errorf("%w: its version is %d", ErrRecord, r.Version)
		}
		records = append(records, r)
	}
	return records, nil
}
