package leasing

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// KeyName is a key as the ledger names its account: readable, printable ASCII,
// and different for different keys. It is what an operator sees in Redis:
// "minute|edge|api_key=abc". Keys that were too long are their digest.
func KeyName(key []byte) string {
	name, ok := readKey(key)
	if !ok {
		return "#" + hex.EncodeToString(key)
	}
	return name
}

func readKey(b []byte) (string, bool) {
	if len(b) < 4 || b[0] >= 0xf0 {
		return "", false
	}
	var out strings.Builder
	if ratelimit.Unit(b[0]) == ratelimit.CalendarMonth {
		out.WriteString("calendar_")
	}
	out.WriteString(ratelimit.Unit(b[0]).String())
	if b[1] != byte(ratelimit.FixedWindow) {
		out.WriteByte('.')
		out.WriteString(ratelimit.Algorithm(b[1]).String())
	}
	multiplier, n := uint64(0), 0
	for i, c := range b[2:] { // uvarint
		multiplier |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			n = i + 1
			break
		}
		if i > 4 {
			return "", false
		}
	}
	if multiplier > 1 {
		out.WriteByte('*')
		out.WriteString(strconv.FormatUint(multiplier, 10))
	}
	b = b[2+n:]
	for part := 0; len(b) > 0; part++ {
		separator := byte('|')
		if part > 0 && part%2 == 0 {
			separator = '='
		}
		if b[0] == 0xff && len(b) > 2 { // a shared pattern
			separator, b = '~', b[2:]
		}
		if b[0] >= 0xfd || len(b) < 1+int(b[0]) {
			return "", false
		}
		out.WriteByte(separator)
		escape(&out, b[1:1+int(b[0])])
		b = b[1+int(b[0]):]
	}
	return out.String(), true
}

// escape writes text with all that could be taken for structure, or does not
// print, as %XX.
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
