package ratelimit

import (
	"encoding/binary"
	"encoding/hex"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// KeyName is the ledger's name of a key: readable, printable ASCII, and different for different keys. Operators see
// it in Redis: "minute|edge|api_key=abc". The name of a long key is its digest.
func KeyName(key []byte) string {
	name, ok := readKey(key)
	if !ok {
		return "#" + hex.EncodeToString(key)
	}
	return name
}

// readKey is the readable form of a key; ok is false for a digest, and for bytes that are no key.
func readKey(b []byte) (string, bool) {
	// The first byte of a readable key is its unit of time. Other bytes begin the digest of a long key.
	if len(b) < 4 || b[0] >= 0xf0 {
		return "", false
	}
	var out strings.Builder
	out.WriteString(unitName(Unit(b[0])))
	// Fixed windows are the usual algorithm, and have no mark, to keep names short.
	if b[1] != byte(FixedWindow) {
		out.WriteByte('.')
		out.WriteString(Algorithm(b[1]).String())
	}
	// The multiplier of the unit, or the day on which billing months begin.
	multiplier, n := binary.Uvarint(b[2:])
	if n <= 0 || n > binary.MaxVarintLen32 {
		return "", false
	}
	billed := Unit(b[0]) == BillingMonth
	b = b[2+n:]
	if billed { // month@15@America/New_York
		zone, rest, ok := textOf(b)
		if !ok {
			return "", false
		}
		out.WriteByte('@')
		out.WriteString(strconv.FormatUint(multiplier, 10))
		out.WriteByte('@')
		escape(&out, zone)
		b = rest
	} else if multiplier > 1 {
		out.WriteByte('*')
		out.WriteString(strconv.FormatUint(multiplier, 10))
	}
	for part := 0; len(b) > 0; part++ {
		separator := byte('|')
		// The parts are the domain, then alternating names and values of entries.
		if part > 0 && part%2 == 0 {
			separator = '='
		}
		if b[0] == 0xff && len(b) > 2 { // a shared pattern
			separator, b = '~', b[2:]
		}
		text, rest, ok := textOf(b)
		if !ok {
			return "", false
		}
		out.WriteByte(separator)
		escape(&out, text)
		b = rest
	}
	return out.String(), true
}

// textOf splits a key after its first text. ok is false if the text is incomplete, or has an impossible length: then
// the bytes are not a key of this version, and are shown unchanged.
func textOf(b []byte) (text, rest []byte, ok bool) {
	if len(b) == 0 || b[0] >= 0xfd || len(b) < 1+int(b[0]) {
		return nil, nil, false
	}
	return b[1 : 1+int(b[0])], b[1+int(b[0]):], true
}

// escape writes text with structural and unprintable characters as %XX. Braces are among them, because Redis Cluster
// takes the text between them for the place of a key.
func escape(out *strings.Builder, text []byte) {
	const digits = "0123456789ABCDEF"
	for _, c := range text {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("%|=~#{}", c) >= 0 {
			out.WriteByte('%')
			out.WriteByte(digits[c>>4])
			out.WriteByte(digits[c&15])
			continue
		}
		out.WriteByte(c)
	}
}

// KeyOfName is the reverse of KeyName. ok is false for other names. Pages and commands use it: operators copy names
// from Redis and from the console.
func KeyOfName(name string) (key []byte, ok bool) {
	if digest, found := strings.CutPrefix(name, "#"); found {
		key, err := hex.DecodeString(digest)
		return key, err == nil
	}
	end := strings.IndexByte(name, '|')
	// A name comes from the ledger, and can be anything. Longer names than those of keys are ignored. An escaped byte
	// takes three.
	if end < 0 || len(name) > 4*MaxKeyLen {
		return nil, false
	}
	key, ok = prefixOf(name[:end])
	if !ok {
		return nil, false
	}
	for rest := name[end:]; rest != ""; {
		// A text ends at the next separator. Separators within texts are escaped.
		separator := rest[0]
		next := strings.IndexAny(rest[1:], "|=~") + 1
		if next == 0 {
			next = len(rest)
		}
		text, err := url.PathUnescape(rest[1:next])
		if err != nil || len(text) >= 0xfd {
			return nil, false
		}
		// A pattern whose values share a budget has a mark, so that it differs from a value that is written like it.
		if separator == '~' {
			key = append(key, 0xff, 0xff)
		}
		key = append(append(key, byte(len(text))), text...)
		rest = rest[next:]
	}
	return key, true
}

// prefixOf is the start of a key: the division into windows.
func prefixOf(header string) ([]byte, bool) {
	if header, period, found := strings.Cut(header, "@"); found {
		return billedPrefixOf(header, period)
	}
	header, times, found := strings.Cut(header, "*")
	multiplier := uint64(1)
	if found {
		var err error
		multiplier, err = strconv.ParseUint(times, 10, 32)
		if err != nil {
			return nil, false
		}
	}
	unit, algorithm, found := strings.Cut(header, ".")
	a := int(FixedWindow)
	if found {
		a = slices.Index(Algorithms[:], algorithm)
	}
	// Names are looked up among those of KeyName, so that the two cannot differ.
	for u := Second; u <= CalendarMonth; u++ {
		if unitName(u) == unit && a >= 0 {
			return binary.AppendUvarint([]byte{byte(u), byte(a)}, multiplier), true
		}
	}
	return nil, false
}

// unitName is the unit in a name of a key. Months of 30 days and those of the calendar have different windows, and so
// different names.
func unitName(u Unit) string {
	if u == CalendarMonth {
		return "calendar_" + u.String()
	}
	return u.String()
}

// billedPrefixOf is the start of a key with billing months.
func billedPrefixOf(unit, period string) ([]byte, bool) {
	first, zone, _ := strings.Cut(period, "@")
	day, err := strconv.ParseUint(first, 10, 7)
	// Days and zones are not checked here: a wrong name is no rule's key, and is not found.
	name, err2 := url.PathUnescape(zone)
	if unit, algorithm, _ := strings.Cut(unit, "."); err != nil || err2 != nil || len(name) >= 0xfd ||
		unit != BillingMonth.String() || algorithm != "" {
		return nil, false
	}
	key := []byte{byte(BillingMonth), byte(FixedWindow), byte(day), byte(len(name))}
	return append(key, name...), true
}
