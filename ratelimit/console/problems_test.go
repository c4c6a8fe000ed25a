package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
)

func TestProblems(t *testing.T) {
	runbooks, err := os.ReadFile("../../docs/reference/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	datadriven.RunTest(t, "testdata/problems.txt", func(t *testing.T, in *datadriven.TestData) string {
		var s State
		var recent Rates
		var lately struct {
			Alone    float64
			Beyond   uint64
			ByPolicy uint64 `json:"by_policy"`

			Decisions, Refused, Hits, Ended, Costless uint64
		}
		d := json.NewDecoder(strings.NewReader(in.Input))
		d.DisallowUnknownFields()
		if err := errors.Join(d.Decode(&s), d.Decode(&recent), d.Decode(&lately)); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		rule := recentRule{
			lately.Alone, lately.Beyond, lately.ByPolicy, lately.Decisions, lately.Refused, lately.Hits, lately.Ended,
			lately.Costless,
		}
		for _, p := range problems(&s, recent, recentRules{"edge\nlogin\n": rule}) {
			fmt.Fprintf(&out, "%s: %s: %s [%s]\n", p.Severity, p.What, p.Detail, p.Runbook)
			title := strings.ToUpper(p.Runbook[:1]) + strings.ReplaceAll(p.Runbook[1:], "-", " ")
			if !strings.Contains(string(runbooks), "\n## "+title+"\n") {
				t.Errorf("there is no runbook %s", p.Runbook)
			}
		}
		return out.String()
	})
}

// Hidden values are the same mark wherever they stand, another in another process,
// and nothing of them is left; what the rules say is shown.
func TestRedactor(t *testing.T) {
	r := NewRedactor()
	keys := []ratelimit.HotKey{
		{Account: "minute|edge|api_key=s3cret|path=/login"},
		{Account: "second|edge|api_key=s3cret"},
		{Account: "#s3cret"},
		{Account: "day|edge|s3cret"},
	}
	hidden := r.hottest(keys)
	for i, k := range hidden {
		if strings.Contains(k.Account, "s3cret") || strings.Contains(k.Account, "login") ||
			!strings.Contains(keys[i].Account, "s3cret") {
			t.Errorf("%s is shown as %s", keys[i].Account, k.Account)
		}
	}
	mark := r.mark("s3cret")
	if hidden[0].Account != "minute|edge|api_key="+mark+"|path="+r.mark("/login") ||
		hidden[1].Account != "second|edge|api_key="+mark {
		t.Errorf("%s, %s", hidden[0].Account, hidden[1].Account)
	}
	if NewRedactor().mark("s3cret") == mark {
		t.Error("another process makes the same mark: values could be tried out")
	}
	if got := r.Accounts([]string{keys[1].Account}); got[0] != hidden[1].Account {
		t.Error(got)
	}
	var shown *Redactor
	if got := shown.hottest(keys); got[0] != keys[0] || shown.Accounts([]string{"a"})[0] != "a" {
		t.Error("values are hidden unasked")
	}
}
