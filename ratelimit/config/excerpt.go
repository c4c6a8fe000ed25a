package config

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Excerpt is the line of a place, and below it a caret at its column: two lines, each with a line
// break. It is "" if the place has no line, or the text lacks it. A long line is cut to 110 columns
// around the column.
func Excerpt(text []byte, at Place) string {
	line := lineOf(text, at.Line)
	if line == "" {
		return ""
	}
	runes := []rune(strings.ToValidUTF8(line, string(utf8.RuneError)))
	column := min(max(1, at.Column), len(runes)+1)
	// The column stays in the middle, unless the line begins or ends before that.
	from := 0
	if len(runes) > excerptWidth {
		from = min(max(0, column-excerptWidth/2), len(runes)-excerptWidth)
		runes = runes[from : from+excerptWidth]
	}
	margin := fmt.Sprintf("%5d | ", at.Line)
	out := margin + printable(runes) + "\n"
	if at.Column < 1 { // the parser reports only the line
		return out
	}
	return out + strings.Repeat(" ", len(margin)-2) + "| " + strings.Repeat(" ", column-1-from) + "^\n"
}

// excerptWidth leaves room for the line's number in a terminal of 120 columns.
const excerptWidth = 110

// printable replaces characters that would move the following text, or change the terminal: control characters, and
// those that change the direction of writing. A tab becomes a space, so that the caret is below its column.
func printable(runes []rune) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r), r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return utf8.RuneError
		}
		return r
	}, string(runes))
}
