package ratelimit

import (
	"crypto/sha256"
	"encoding/binary"
)

// MaxKeyLen is the longest key AppendKey leaves as it is, in bytes. Longer
// ones are replaced by their digest, so that a key's memory is bounded
// whatever values clients send.
const MaxKeyLen = 128

// AppendPrefix starts the key of a budget: the domain and the cut of its windows. Two limits that differ only
// in their amount share accounts, so that a changed limit continues from the usage.
func AppendPrefix(b []byte, domain string, l Limit) []byte {
	b = append(b, byte(l.Unit), byte(l.Algorithm))
	if l.Calendar != 0 {
		b = appendField(append(b, byte(l.Calendar.Day())), l.Calendar.Zone())
		return appendField(b, domain)
	}
	b = binary.AppendUvarint(b, uint64(max(1, l.Multiplier)))
	return appendField(b, domain)
}

// ValueOf says whose value an entry of a key has.
type ValueOf bool

const (
	// OfRequest is the value that the request brought.
	OfRequest ValueOf = false
	// OfRule is the rule's pattern, whose values share a budget (share_threshold).
	OfRule ValueOf = true
)

// AppendEntry adds a descriptor entry to a key. The encoding is prefix-free:
// different descriptors never share a key, nor do a pattern and a value that is
// written like it.
func AppendEntry(b []byte, key, value string, whose ValueOf) []byte {
	b = appendField(b, key)
	if whose == OfRule {
		b = append(b, 0xff, 0xff) // no length starts like this
	}
	return appendField(b, value)
}

// appendField writes the length in one byte, or for 253 and more as 0xfe and
// eight bytes.
func appendField(b []byte, s string) []byte {
	if len(s) < 0xfd {
		b = append(b, byte(len(s)))
	} else {
		b = append(b, 0xfe)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	}
	return append(b, s...)
}

// SealKey ends a key that starts at b[start]: one longer than MaxKeyLen is
// replaced by a mark and its SHA-256.
func SealKey(b []byte, start int) []byte {
	if len(b)-start <= MaxKeyLen {
		return b
	}
	sum := sha256.Sum256(b[start:])
	return append(append(b[:start], 0xff), sum[:]...) // no Unit is 0xff
}
