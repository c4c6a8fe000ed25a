package main

import (
	"regexp"
	"strings"
)

// A ledger is written twice, in Go and in Lua, and a test compares the two claim by claim. That test finds
// faults in one of them. A wrong idea is wrong in both. A twin is the same fault in both at once, so that
// only a test of the idea can find it.

// twinScripts are the Go files that say the same as a script.
var twinScripts = map[string]string{
	"leasing/account/account.go": "leasing/account/claim.lua",
	"leasing/account/records.go": "leasing/account/claim.lua",
	"leasing/account/recall.go":  "leasing/account/claim.lua",
	"leasing/account/bucket.go":  "leasing/account/bucket.lua",
}

// alone tells whether it is a fault of something that is written twice, in one of the two: whatever
// compares them is to find it.
func (m *mutant) alone() bool {
	if len(m.parts) > 0 {
		return false
	}
	for file, script := range twinScripts {
		if m.file == file || m.file == script {
			return true
		}
	}
	return false
}

// twins pairs faults of Go and of Lua that change the same text in the same way, in functions of the same name but for
// case and _.
func twins(all []*mutant, texts map[string]string) []*mutant {
	inLua := map[string][]*mutant{}
	for _, m := range all {
		if m.isLua() {
			k := twinKey(m, m.file, m.fn, texts)
			inLua[k] = append(inLua[k], m)
		}
	}
	var found []*mutant
	for _, m := range all {
		script := twinScripts[m.file]
		if script == "" || len(m.edits) != 1 || len(m.consts) > 0 {
			continue
		}
		k := twinKey(m, script, twinFunction(m.fn), texts)
		same := inLua[k]
		if len(same) == 0 {
			continue
		}
		inLua[k] = same[1:]
		found = append(found, &mutant{
			file: m.file + "+" + script, line: m.line, fn: m.fn, op: m.op + ", both", old: m.old, new: m.new,
			edits: []edit{m.edits[0], same[0].edits[0]}, parts: []*mutant{m, same[0]},
		})
	}
	return found
}

func twinFunction(fn string) string {
	return fn[strings.LastIndexByte(fn, '.')+1:]
}

// twinKey says what a fault changes, in words that Go and Lua share.
func twinKey(m *mutant, script, fn string, texts map[string]string) string {
	e, text := m.edits[0], texts[m.file]
	left, right := plainWords(text[max(0, e.Start-80):e.Start]), plainWords(text[e.End:min(len(text), e.End+80)])
	left, right = left[max(0, len(left)-1):], right[:min(1, len(right))]
	old, changed := plainWords(text[e.Start:e.End]), plainWords(e.Text)
	if m.op == "drop" || m.op == "never" || m.op == "always" { // the whole says enough
		left, right = nil, nil
	}
	join := func(words []string) string { return strings.Join(words, " ") }
	return join([]string{script, strings.ToLower(strings.ReplaceAll(fn, "_", "")), m.op, join(left), "[", join(old), "=>", join(changed), "]", join(right)})
}

var (
	plainIndex      = regexp.MustCompile(`(\w+)\[([A-Z]+)\]`)
	plainFlag       = regexp.MustCompile(`flag\((\w+), ([124])\)`)
	plainConversion = regexp.MustCompile(`\b(?:tokens|int64|uint64|ledgerTime|ratelimit\.\w+|time\.Duration)\(([^()]*)\)`)
	plainAssign     = regexp.MustCompile(`([\w.]+) ([-+])= `)
	plainWord       = regexp.MustCompile(`[A-Za-z_][\w.]*|\d[\d_]*|[=!<>~]=|&&|\|\||:=|\S`)
	plainNames      = map[string]string{
		"and": "&&", "or": "||", "not": "!", "~=": "!=", "else": "", "then": "", "nil": "nil",
	}
)

func plainWords(text string) []string {
	text = plainIndex.ReplaceAllString(text, "$1.$2")
	text = plainFlag.ReplaceAllStringFunc(text, func(s string) string {
		m := plainFlag.FindStringSubmatch(s)
		return m[1] + map[string]string{"1": ".closed", "2": ".void", "4": ".direct"}[m[2]]
	})
	text = plainConversion.ReplaceAllString(text, "$1")
	text = plainAssign.ReplaceAllString(text, "$1 = $1 $2 ")
	var words []string
	for _, word := range plainWord.FindAllString(text, -1) {
		if plain, ok := plainNames[word]; ok {
			word = plain
		}
		if word = strings.ToLower(strings.ReplaceAll(word, "_", "")); word != "" {
			words = append(words, word)
		}
	}
	return words
}
