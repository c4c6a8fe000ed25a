// The key of a budget, as bytes. That of "minute|edge|api_key=abc" is
//
//	02 00       the unit and the algorithm
//	01          the multiplier; for billing months the day, and then the zone as a text
//	04 edge     the domain, as are all texts: its length and its bytes
//	07 api_key 03 abc
//
// The number of the limit is not in it, so that a changed limit goes on with the usage. keyname.go has the readable
// form.

package ratelimit

import (
	"crypto/sha256"
	"encoding/binary"
)

// MaxKeyLen is the longest key that [AppendEntry] leaves as it is, in bytes. Longer
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

// SealKey ends a key that starts at b[start]: one longer than MaxKeyLen is replaced by a mark and its SHA-256. Clients
// choose values, so the hash must be one without known collisions.
func SealKey(b []byte, start int) []byte {
	if len(b)-start <= MaxKeyLen {
		return b
	}
	sum := sha256.Sum256(b[start:])
	return append(append(b[:start], 0xff), sum[:]...) // no Unit is 0xff
}

// DescriptorKey is the part of a key that names the domain and the descriptor, without the cut of the windows:
// overrides count for it under each unit. A digest stays whole. It is a view of key.
func DescriptorKey(key []byte) []byte {
	if len(key) < 4 || key[0] == 0xff {
		return key
	}
	_, n := binary.Uvarint(key[2:]) // the multiplier, or the day on which billing months begin
	if n <= 0 || 2+n >= len(key) {
		return key
	}
	rest := key[2+n:]
	if zone := 1 + int(rest[0]); Unit(key[0]) == BillingMonth && zone < len(rest) {
		rest = rest[zone:]
	}
	return rest
}

// ReadDescriptor is the domain of a DescriptorKey, and then the keys and values of its entries. ok is false for a
// digest.
func ReadDescriptor(key []byte) (texts []string, ok bool) {
	if len(key) > 0 && key[0] == 0xff {
		return nil, false
	}
	for len(key) > 0 {
		if len(key) > 2 && key[0] == 0xff && key[1] == 0xff { // a pattern whose values share a budget
			key = key[2:]
		}
		end := 1 + int(key[0])
		if key[0] >= 0xfd || end > len(key) {
			return nil, false
		}
		texts, key = append(texts, string(key[1:end])), key[end:]
	}
	return texts, len(texts) > 2 && len(texts)%2 == 1
}
