package ratelimit

import "unicode/utf8"

// lineLen is how much of a caller's text an error may repeat.
const lineLen = 200

// OneLine is a text as far as an error or a log should repeat it: its first
// line, and no more than 200 bytes of that.
func OneLine(text string) string {
	for i, r := range text {
		if r == '\n' || r == '\r' || i+utf8.RuneLen(r) > lineLen {
			return text[:i] + "..."
		}
	}
	return text
}
