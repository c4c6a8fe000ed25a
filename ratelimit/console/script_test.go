package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

var (
	scriptText   = regexp.MustCompile(`X(\d+)`)
	scriptHeader = regexp.MustCompile(` (From|If-Match|If-None-Match): ?`)
	scriptTimes  = regexp.MustCompile(`,"expires":"[^"]*"|time=\S+ | expires=\S+`)
)

func TestOverridesAreAnsweredInFull(t *testing.T) {
	datadriven.RunTest(t, "testdata/overrides.txt", func(t *testing.T, in *datadriven.TestData) string {
		n := newOverridable(t)
		var out strings.Builder
		for line := range strings.SplitSeq(in.Input, "\n") {
			line = scriptText.ReplaceAllStringFunc(line, func(x string) string {
				n, _ := strconv.Atoi(x[1:])
				return strings.Repeat("x", n)
			})
			if said := scriptTimes.ReplaceAllString(n.play(line), ""); said != "" {
				fmt.Fprintln(&out, strings.TrimSpace(said))
			}
		}
		return out.String()
	})
}

// play does what a line says: without one of the words below, it is a request.
func (n *overridable) play(line string) string {
	cmd, rest, _ := strings.Cut(line, " ")
	switch cmd {
	case "keys":
		names := []string{}
		for o := range n.book.All("") {
			names = append(names, o.Key)
		}
		return fmt.Sprintf("%q", names)
	case "log":
		return n.log.String()
	case "down":
		n.down = errors.New("no route to Redis")
		return ""
	case "gone": // the rules of some overrides
		other := strings.NewReplacer("unit: day", "unit: minute", "domain: gone", "domain: other")
		for i, f := range n.files {
			n.files[i].Data = []byte(other.Replace(string(f.Data)))
		}
		if err := n.console.Metrics.Store.Load(); err != nil {
			n.Fatal(err)
		}
		return ""
	case "explain":
		var e Explanation
		text := n.do("GET", "/explain?domain=edge&entry=api_key=alice", "", "Authorization: ").Body.Bytes()
		if err := json.Unmarshal(text, &e); err != nil {
			n.Fatal(err)
		}
		return fmt.Sprintf("%s of %s, %q in the file: %s; set %t, expires %t, says why %t", e.Limit,
			e.LimitFrom, e.RuleLimit, e.Next, !e.OverrideSet.IsZero(), !e.OverrideExpires.IsZero(),
			bytes.Contains(text, []byte("s3cret")) || bytes.Contains(text, []byte("ops")))
	case "quiet":
		return n.play(rest)[:0]
	case "list":
		return n.listed(rest)
	}
	var headers []string
	if at := scriptHeader.FindAllStringIndex(rest, -1); at != nil {
		for i := range at {
			end := append(at, []int{len(rest)})[i+1][0]
			headers = append(headers, rest[at[i][0]+1:end])
		}
		rest = rest[:at[0][0]]
	}
	path, body, _ := strings.Cut(rest, " ")
	w := n.do(cmd, path, body, headers...)
	if w.Code >= 400 && w.Body.Len() > 400 || strings.Count(w.Body.String(), "\n") > 1 {
		n.Errorf("%.60s is answered at length: %.600s", line, w.Body)
	}
	return fmt.Sprintf("%d %s %s", w.Code, w.Header().Get("ETag"), w.Body)
}

// listed is all pages of a list.
func (n *overridable) listed(path string) string {
	all := []string{}
	for after := ""; ; {
		var page Page
		answer := n.do("GET", path+"&after="+url.QueryEscape(after), "").Body.Bytes()
		if err := json.Unmarshal(answer, &page); err != nil {
			n.Fatal(err)
		}
		for _, o := range page.Overrides {
			all = append(all, o.Descriptor)
		}
		if after = page.Next; after == "" {
			return fmt.Sprintf("%q", all)
		}
	}
}
