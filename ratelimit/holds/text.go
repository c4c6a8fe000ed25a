package holds

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Sizes of a hold, in bytes.
const (
	version  = 1
	header   = 1 + 4 + 6
	tagSize  = 4
	macSize  = 12
	maxBytes = 72
	MaxText  = maxBytes / 3 * 4
	// maxParts is how many parts fit. Invariant: a memory has a bit for each, of 16.
	maxParts    = (maxBytes - header - macSize) / (tagSize + 1)
	leastBytes  = header + tagSize + 1 + macSize
	forTag      = 1
	forMAC      = 2
	mostInstant = 1<<32 - 1
)

// Part is the hold of a request on one budget.
type Part struct {
	Key    []byte // of the budget (ratelimit.Ask); the caller's
	Amount ratelimit.Tokens
}

// text is base64 that says each hold in one way only.
var text = base64.RawURLEncoding.Strict()

// NewSlot is a number for a hold, at random: of 48 bits, and not 0.
func NewSlot() uint64 { return max(1, rand.Uint64()>>16) }

// Append appends a hold to b, of a number from NewSlot. at is an instant in the windows in which its parts were
// charged, in seconds since the Unix epoch. It returns how many parts there was room for: the first ones; 0, and
// nothing is appended, where there is no key.
//
// The bytes are built on the stack: the header, then each part while it and the MAC fit, then the MAC of all before it.
func (k *Keys) Append(b []byte, slot uint64, at int64, parts []Part) ([]byte, int) {
	keys := k.get()
	if len(keys) == 0 || at < 0 || at > mostInstant {
		return b, 0
	}
	var room [maxBytes + 32]byte
	raw := append(room[:0], version)
	raw = binary.BigEndian.AppendUint32(raw, uint32(at))
	raw = append(raw, binary.BigEndian.AppendUint64(nil, slot)[2:]...) // the nonce, of 48 bits
	written := 0
	for _, p := range parts {
		var amount [binary.MaxVarintLen64]byte
		n := binary.PutUvarint(amount[:], uint64(p.Amount))
		if len(raw)+tagSize+n+macSize > maxBytes {
			break
		}
		raw = append(append(raw, keys[0].tag(raw, p.Key)...), amount[:n]...)
		written++
	}
	if written == 0 {
		return b, 0
	}
	var sum [32]byte
	raw = append(raw, keys[0].sum(sum[:0], forMAC, raw)[:macSize]...)
	return text.AppendEncode(b, raw), written
}

// tag is of a budget, in the hold that begins as raw does. It depends on the header, so that the same budget has
// another tag in each hold, and a reader of answers learns nothing from it.
func (k *key) tag(raw, budget []byte) []byte {
	return k.sum(nil, forTag, raw[:header], budget)[:tagSize]
}

// hold is one that was read, and is this fleet's.
type hold struct {
	key     *key
	raw     [maxBytes]byte
	at      int64
	id      uint64 // by which it is remembered: the beginning of its MAC
	slot    uint64
	amounts [maxParts]ratelimit.Tokens
	tags    [maxParts][]byte // in raw
	parts   int
}

// read reads a hold; false: it is none of this fleet's. It tries each key, and compares in constant time. After that
// the bytes are trusted: a node of this fleet wrote them.
func (k *Keys) read(s string, h *hold) bool {
	// Nothing is decoded of what cannot be one.
	if len(s) > MaxText || len(s) == 0 {
		return false
	}
	var in [MaxText]byte
	n, err := text.Decode(h.raw[:], in[:copy(in[:], s)])
	raw := h.raw[:n]
	if err != nil || n < leastBytes || raw[0] != version {
		return false
	}
	body, mac := raw[:n-macSize], raw[n-macSize:]
	for _, key := range k.get() {
		var sum [32]byte
		if hmac.Equal(key.sum(sum[:0], forMAC, body)[:macSize], mac) {
			h.key = key
			break
		}
	}
	if h.key == nil {
		return false
	}
	h.at, h.id = int64(binary.BigEndian.Uint32(raw[1:])), binary.BigEndian.Uint64(mac)
	h.slot = binary.BigEndian.Uint64(raw[3:]) & (1<<48 - 1)
	for rest := body[header:]; len(rest) > tagSize; h.parts++ {
		amount, size := binary.Uvarint(rest[tagSize:])
		h.tags[h.parts], h.amounts[h.parts] = rest[:tagSize], ratelimit.Tokens(amount)
		rest = rest[tagSize+size:]
	}
	return true
}
