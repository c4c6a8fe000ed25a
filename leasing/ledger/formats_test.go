package ledger

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	accountPacked = regexp.MustCompile(`(?s)local function packed\(\).*?local all = \{ (.*?), sums\(\) \}`)
	sumsReturned  = regexp.MustCompile(`(?s)local function sums\(\).*?\n  return (.*?)\n`)
	aheadReturned = regexp.MustCompile(`(?s)local function ahead\(\).*?\n  return (.*?)\n`)
	recordNames   = regexp.MustCompile(`local (SEQ, [A-Z, ]+) = `)
	claimNumbers  = regexp.MustCompile(`local (Seq, [A-Za-z, ]+) =\s+struct\.unpack`)
	tableRow      = regexp.MustCompile("(?m)^\\| ([0-9]+) \\| `([a-z_ ]+)`")
)

// The formats of the page are those of settle.lua: as many fields, in that order.
func TestProtocolFormats(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := func(table string) (names []string) {
		_, after, _ := strings.Cut(string(page), "<!-- "+table+" -->")
		table, _, _ = strings.Cut(after, "<!-- end -->")
		for i, row := range tableRow.FindAllStringSubmatch(table, -1) {
			if row[1] != fmt.Sprint(i+1) {
				t.Errorf("field %d is numbered %s", i+1, row[1])
			}
			names = append(names, row[2])
		}
		return names
	}
	one := func(what *regexp.Regexp) string {
		m := what.FindStringSubmatch(settleLua)
		if m == nil {
			t.Fatalf("settle.lua has no %v", what)
		}
		return m[1]
	}
	account := strings.Split(strings.ReplaceAll(one(accountPacked), "a.", ""), ", ")
	account = append(account, strings.Split(one(sumsReturned), ", ")...)
	account = append(account, one(regexp.MustCompile(fmt.Sprintf(`all\[%d\] = a\.(\w+)`, len(account)+1))))
	account = append(account, strings.Split(one(aheadReturned), ", ")...)
	if got := rows("account"); !slices.Equal(got, account) {
		t.Errorf("the page has the account as\n%v, and settle.lua as\n%v", got, account)
	}
	if got, want := rows("record"), strings.Split(strings.ToLower(one(recordNames)), ", "); !slices.Equal(got, want) {
		t.Errorf("the page has a record as\n%v, and settle.lua as\n%v", got, want)
	}
	if got, want := rows("claim"), strings.Split(strings.ToLower(one(claimNumbers)), ", "); !slices.Equal(got, want) {
		t.Errorf("the page has a claim as\n%v, and settle.lua as\n%v", got, want)
	}
	if got := len(rows("grant")); got != answerFields {
		t.Errorf("the page has %d numbers of an answer, and there are %d", got, answerFields)
	}
}
