package account

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// Both ledgers answer as the scripts say: of windows, and of buckets. Each line has a time after the script's begin, a
// holder, and its message. A ledger "keeps" an account for a time from now.
//
//	go test ./leasing/account -run Scripts -rewrite
func TestWindowScripts(t *testing.T) { runScripts(t, "testdata/windows.txt") }

func TestBucketScripts(t *testing.T) { runScripts(t, "testdata/buckets.txt") }

func runScripts(t *testing.T, path string) {
	datadriven.RunTest(t, path, func(t *testing.T, in *datadriven.TestData) string {
		var out strings.Builder
		p := newPair(t, limitOf(t, strings.TrimPrefix(in.FullCmd(), "play ")))
		for line := range strings.Lines(in.Input) {
			at, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			who, message, _ := strings.Cut(rest, " ")
			after, err := time.ParseDuration(at)
			if err != nil {
				t.Fatal(err)
			}
			answer := p.says(after, who, message)
			for _, h := range p.asked {
				answer += fmt.Sprintf(" %c", rune(h))
			}
			p.asked = nil
			fmt.Fprintln(&out, answer)
		}
		return out.String()
	})
}
