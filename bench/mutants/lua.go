package main

import (
	"fmt"
	"strings"
)

// luaToken is a word of a Lua script.
type luaToken struct {
	kind       luaKind
	text       string
	start, end int
	pair       int    // of a bracket: the index of the other one
	fn         string // the function that it is in; "" outside of any
}

type luaKind int

const (
	luaName luaKind = iota
	luaKeyword
	luaNumber
	luaString
	luaSymbol
)

var luaKeywords = map[string]bool{}

func init() {
	for word := range strings.FieldsSeq("and break do else elseif end false for function if in local nil not or repeat return then true until while") {
		luaKeywords[word] = true
	}
}

// luaTokens cuts a script into words. It knows what the project's scripts use
// of Lua 5.1: no long brackets.
func luaTokens(text string) ([]luaToken, error) {
	var all []luaToken
	for i := 0; i < len(text); {
		c := text[i]
		t := luaToken{start: i, kind: luaSymbol}
		switch {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			i++
			continue
		case strings.HasPrefix(text[i:], "--"):
			if strings.HasPrefix(text[i:], "--[[") {
				return nil, fmt.Errorf("line %d: a long comment; write lines that start with --", lineOf(text, i))
			}
			for i < len(text) && text[i] != '\n' {
				i++
			}
			continue
		case isLetter(c):
			for i < len(text) && (isLetter(text[i]) || isDigit(text[i])) {
				i++
			}
			if t.kind = luaName; luaKeywords[text[t.start:i]] {
				t.kind = luaKeyword
			}
		case isDigit(c):
			t.kind = luaNumber
			for i < len(text) && (isLetter(text[i]) || isDigit(text[i]) || text[i] == '.') {
				i++
			}
		case c == '\'' || c == '"':
			t.kind = luaString
			for i++; i < len(text) && text[i] != c; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if i++; i > len(text) {
				return nil, fmt.Errorf("line %d: a string that does not end", lineOf(text, t.start))
			}
		case strings.HasPrefix(text[i:], "[["):
			return nil, fmt.Errorf("line %d: a long string; write '...'", lineOf(text, i))
		default:
			i++
			for _, long := range []string{"...", "..", "==", "~=", "<=", ">="} {
				if strings.HasPrefix(text[t.start:], long) {
					i = t.start + len(long)
					break
				}
			}
		}
		t.end = i
		t.text = text[t.start:t.end]
		all = append(all, t)
	}
	return all, luaStructure(text, all)
}

func isLetter(c byte) bool { return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }

// luaStructure pairs brackets, and tells which function each token is in.
func luaStructure(text string, all []luaToken) error {
	var brackets []int
	var blocks []string // a function's name, or "" for another block
	for i := range all {
		t := &all[i]
		for j := len(blocks) - 1; j >= 0 && t.fn == ""; j-- {
			t.fn = blocks[j]
		}
		switch t.text {
		case "(", "[", "{":
			if t.kind == luaSymbol {
				brackets = append(brackets, i)
			}
		case ")", "]", "}":
			if t.kind != luaSymbol {
				continue
			}
			if len(brackets) == 0 {
				return fmt.Errorf("line %d: a %s too many", lineOf(text, t.start), t.text)
			}
			j := brackets[len(brackets)-1]
			brackets = brackets[:len(brackets)-1]
			t.pair, all[j].pair = j, i
		case "function":
			name := "a function"
			if i+1 < len(all) && all[i+1].kind == luaName {
				name = all[i+1].text
			}
			blocks = append(blocks, name)
		case "if", "do", "repeat": // while and for have a do
			blocks = append(blocks, "")
		case "end", "until":
			if t.kind != luaKeyword {
				continue
			}
			if len(blocks) == 0 {
				return fmt.Errorf("line %d: an %s too many", lineOf(text, t.start), t.text)
			}
			blocks = blocks[:len(blocks)-1]
		}
	}
	if len(brackets)+len(blocks) > 0 {
		return fmt.Errorf("%d brackets and %d blocks do not end", len(brackets), len(blocks))
	}
	return nil
}
