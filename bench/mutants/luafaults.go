package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// luaFaults are the mutants of a script, of the same kinds as Go's.
func luaFaults(name, text string) ([]*mutant, error) {
	tokens, err := luaTokens(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	w := &luaWalker{name: name, text: text, tokens: tokens}
	for i := range tokens {
		w.visit(i)
	}
	return w.found, nil
}

type luaWalker struct {
	name, text string
	tokens     []luaToken
	found      []*mutant
}

// replace replaces the tokens from first to last, both included.
func (w *luaWalker) replace(op string, first, last int, text string) {
	w.bytes(op, first, w.tokens[first].start, w.tokens[last].end, text)
}

func (w *luaWalker) bytes(op string, at, start, end int, text string) {
	e := edit{File: w.name, Start: start, End: end, Text: text}
	m := &mutant{file: w.name, line: lineOf(w.text, e.Start), fn: w.tokens[at].fn, op: op, edits: []edit{e}}
	if m.fn == "" {
		m.fn = "script"
	}
	m.old, m.new = shown(w.text, e)
	w.found = append(w.found, m)
}

func (w *luaWalker) source(first, last int) string {
	return w.text[w.tokens[first].start:w.tokens[last].end]
}

// ends tells whether a token can be the last of an operand.
func (t *luaToken) ends() bool {
	switch t.kind {
	case luaName, luaNumber, luaString:
		return true
	case luaKeyword:
		return t.text == "end" || t.text == "true" || t.text == "false" || t.text == "nil"
	}
	return t.text == ")" || t.text == "]" || t.text == "}"
}

// begins tells whether a token can be the first of a statement or an operand
// after one that has ended; a bracket goes on.
func (t *luaToken) begins() bool {
	if t.kind == luaKeyword {
		return t.text != "and" && t.text != "or"
	}
	return t.kind != luaSymbol
}

var (
	luaBoundary   = map[string]string{"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
	luaOpposite   = map[string]string{"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "~=", "~=": "=="}
	luaArithmetic = map[string]string{"+": "-", "-": "+", "*": "/", "/": "*", "%": "/"}
)

func (w *luaWalker) visit(i int) {
	t := &w.tokens[i]
	binary := i > 0 && w.tokens[i-1].ends()
	switch {
	case t.kind == luaSymbol && luaOpposite[t.text] != "":
		if luaBoundary[t.text] != "" {
			w.replace("boundary", i, i, luaBoundary[t.text])
		}
		if luaBoundary[t.text] == "" || !w.inCondition(i) {
			w.replace("negate", i, i, luaOpposite[t.text])
		}
	case t.kind == luaSymbol && luaArithmetic[t.text] != "" && binary:
		w.replace("arithmetic", i, i, luaArithmetic[t.text])
	case t.text == "-" && !binary, t.text == "not" && t.kind == luaKeyword:
		w.bytes("sign", i, t.start, w.tokens[i+1].start, "")
	case t.text == "and" || t.text == "or":
		left, right := w.operandBefore(i), w.operandAfter(i)
		w.bytes("operand", i, w.tokens[i-1].end, w.tokens[right].end, "")
		w.bytes("operand", i, w.tokens[left].start, w.tokens[i+1].start, "")
	case t.kind == luaNumber:
		w.number(i)
	case t.kind == luaKeyword && (t.text == "true" || t.text == "false"):
		w.replace("bool", i, i, map[string]string{"true": "false", "false": "true"}[t.text])
	case t.kind == luaKeyword && (t.text == "if" || t.text == "elseif"):
		w.condition(i)
	case t.kind == luaName && w.startsStatement(i):
		w.statement(i)
	}
	if t.kind == luaName && (t.text == "min" || t.text == "max") && i+1 < len(w.tokens) && w.tokens[i+1].text == "(" {
		w.dropArgument(i)
	}
}

// inCondition tells whether a comparison decides an if, alone or as an operand.
func (w *luaWalker) inCondition(i int) bool {
	for ; i >= 0; i-- {
		switch w.tokens[i].text {
		case "if", "elseif", "while", "and", "or":
			return true
		case "return", "=", "then", "local", "(":
			return false
		}
	}
	return false
}

// operandBefore is the first token of what an and or an or has on its left.
func (w *luaWalker) operandBefore(i int) int {
	op := w.tokens[i].text
	for j := i - 1; j > 0; j-- {
		t := &w.tokens[j]
		if t.pair > 0 || t.text == ")" || t.text == "]" || t.text == "}" {
			if j = t.pair; j == 0 {
				return 0
			}
		}
		before := &w.tokens[j-1]
		switch before.text {
		case "(", "[", "{", ",", "=", "return", "if", "elseif", "while", "until", "or", "then", "else", "do":
			return j
		case "and":
			if op == "and" {
				return j
			}
		}
	}
	return 0
}

// operandAfter is the last token of what an and or an or has on its right.
func (w *luaWalker) operandAfter(i int) int {
	op := w.tokens[i].text
	for j := i + 1; j < len(w.tokens); j++ {
		if w.tokens[j].pair > j {
			j = w.tokens[j].pair
		}
		if j+1 == len(w.tokens) {
			return j
		}
		after := &w.tokens[j+1]
		switch after.text {
		case ")", "]", "}", ",", "then", "do", "or", "end", "else", "elseif", "until":
			return j
		case "and":
			if op == "and" {
				return j
			}
			continue
		}
		if w.tokens[j].ends() && after.begins() {
			return j
		}
	}
	return len(w.tokens) - 1
}

func (w *luaWalker) number(i int) {
	if i > 0 && w.tokens[i-1].text == "[" { // an index
		return
	}
	v, err := strconv.ParseInt(w.tokens[i].text, 10, 64)
	if err != nil {
		return
	}
	w.replace("number", i, i, otherNumber(v))
}

// condition is what an if hangs on: it may never hold, or always.
func (w *luaWalker) condition(i int) {
	end := i + 1
	for end < len(w.tokens) && w.tokens[end].text != "then" {
		end++
	}
	cond := w.source(i+1, end-1)
	w.replace("never", i+1, end-1, "false and ("+cond+")")
	if strings.ContainsAny(cond, "<>") && !strings.Contains(cond, " and ") && !strings.Contains(cond, " or ") {
		w.replace("always", i+1, end-1, "true or ("+cond+")")
	}
}

// startsStatement tells whether a name is the first of a statement.
func (w *luaWalker) startsStatement(i int) bool {
	if i == 0 {
		return true
	}
	before := &w.tokens[i-1]
	switch before.text {
	case "then", "else", "do", "repeat", ";":
		return true
	case ")": // of a call before, or of a function's parameters
		return true
	}
	return before.ends()
}

// statement drops an assignment, in whole and one of several names, or a call.
func (w *luaWalker) statement(i int) {
	var names, values [][2]int
	from := i
	for j := i; j < len(w.tokens); j++ {
		t := &w.tokens[j]
		if t.pair > j && t.text != ")" {
			j = t.pair
			if w.tokens[j].text == ")" && (j+1 == len(w.tokens) || w.tokens[j+1].begins()) {
				w.replace("drop", i, j, "") // a call
				return
			}
			continue
		}
		switch t.text {
		case ",":
			names = append(names, [2]int{from, j - 1})
			from = j + 1
		case "=":
			names = append(names, [2]int{from, j - 1})
			values = w.values(j + 1)
			last := values[len(values)-1][1]
			if len(names) == 1 {
				w.replace("drop", i, last, "")
			} else if len(names) == len(values) {
				w.dropNames(i, last, names, values)
			}
			return
		case "then", "do", "end", "return":
			return
		}
	}
}

// values are the expressions of a list that starts at i.
func (w *luaWalker) values(i int) (all [][2]int) {
	from := i
	for j := i; j < len(w.tokens); j++ {
		if w.tokens[j].pair > j {
			j = w.tokens[j].pair
		}
		if j+1 < len(w.tokens) && w.tokens[j+1].text == "," {
			all = append(all, [2]int{from, j})
			from = j + 2
			j++
			continue
		}
		if j+1 == len(w.tokens) || w.tokens[j].ends() && w.tokens[j+1].begins() {
			return append(all, [2]int{from, j})
		}
	}
	return append(all, [2]int{from, len(w.tokens) - 1})
}

// dropNames leaves each of the names of an assignment out, with its value.
func (w *luaWalker) dropNames(first, last int, names, values [][2]int) {
	join := func(all [][2]int, without int) string {
		var texts []string
		for i, r := range all {
			if i != without {
				texts = append(texts, w.source(r[0], r[1]))
			}
		}
		return strings.Join(texts, ", ")
	}
	for i := range names {
		w.replace("drop", first, last, join(names, i)+" = "+join(values, i))
	}
}

// dropArgument leaves one argument of min or max out.
func (w *luaWalker) dropArgument(i int) {
	open := i + 1
	end := w.tokens[open].pair
	var arguments [][2]int
	from := open + 1
	for j := open + 1; j <= end; j++ {
		if w.tokens[j].pair > j {
			j = w.tokens[j].pair
			continue
		}
		if j == end || w.tokens[j].text == "," {
			arguments = append(arguments, [2]int{from, j - 1})
			from = j + 1
		}
	}
	for k := range arguments {
		if len(arguments) < 2 {
			return
		}
		rest := slices.Delete(slices.Clone(arguments), k, k+1)
		var texts []string
		for _, r := range rest {
			texts = append(texts, w.source(r[0], r[1]))
		}
		w.replace("min-max", i, end, w.tokens[i].text+"("+strings.Join(texts, ", ")+")")
	}
}
