package settings

import (
	"slices"
	"strings"
	"text/template"
)

// Advice says which settings an error speaks of, by the text of the error: libraries have no other form for most. The
// first line that matches counts, so special causes come before general ones.
type Advice []advised

// advised is what to do about errors with one of some texts.
type advised struct {
	texts []string
	what  *template.Template
}

// ReadAdvice reads lines of texts, with "|" between them, a tab, and what to do, which is a template. The last line has
// no text, and is for all other errors.
//
// With TLS 1.3, the refusal of a client's certificate may look like an end of the connection without a message: "broken
// pipe", "connection reset" or "EOF".
func ReadAdvice(lines string) (all Advice) {
	for line := range strings.Lines(lines) {
		texts, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, advised{strings.Split(texts, "|"), template.Must(template.New(texts).Parse(what))})
	}
	return all
}

// On is the first advice on an error with that text. It shows values of the settings. It always finds one: the text of
// the last line is empty, and every text contains it.
func (a Advice) On(text string, settings any) string {
	at := slices.IndexFunc(a, func(x advised) bool {
		return slices.ContainsFunc(x.texts, func(part string) bool { return strings.Contains(text, part) })
	})
	var b strings.Builder
	_ = a[at].what.Execute(&b, settings) // a Builder takes everything
	return b.String()
}
