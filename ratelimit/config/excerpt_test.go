package config

import (
	"strings"
	"testing"
)

func TestExcerpt(t *testing.T) {
	long := strings.Repeat("x", 200) + "here" + strings.Repeat("y", 200)
	text := []byte("domain: d\r\n\tkey: \x1b[31m\n" + long + "\n")
	for _, c := range []struct {
		at   Place
		want string
	}{
		{Place{"f", 1, 9}, "    1 | domain: d\n      |         ^\n"},
		{Place{"f", 1, 0}, "    1 | domain: d\n"},
		{Place{"f", 1, 99}, "    1 | domain: d\n      |          ^\n"},
		{Place{"f", 2, 2}, "    2 |  key: \ufffd[31m\n      |  ^\n"},
		{Place{"f", 0, 0}, ""},
		{Place{"f", 9, 1}, ""},
	} {
		if got := Excerpt(text, c.at); got != c.want {
			t.Errorf("%v:\n%s\nwant\n%s", c.at, got, c.want)
		}
	}
	lines := strings.Split(Excerpt(text, Place{"f", 3, 201}), "\n")
	caret := strings.IndexByte(lines[1], '^')
	if len(lines[0]) > 120 || !strings.HasPrefix(lines[0][caret:], "here") {
		t.Errorf("of a long line:\n%s\n%s", lines[0], lines[1])
	}
}
