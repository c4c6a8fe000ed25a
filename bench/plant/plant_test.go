package plant

import (
	"strings"
	"testing"
)

// product is a package of which it is known what its test notices.
const product = "bench/plant/testdata/purse"

// A run has the selected bug, in one build of all of them, or none.
func TestRunsHaveOneBug(t *testing.T) {
	const file = product + "/purse.go"
	tests, err := Tests(t.Context(), "../..", product, t.TempDir(), []Bug{
		{"a purse has room for more", file, "p.coins < most", "p.coins < most+1"},
		{"a purse may be overdrawn", file, "n = min(n, p.coins)\n", "\n"},
		{"coins stay in the purse", file, "p.coins -= n", "p.coins -= 0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for bug, says := range map[string]string{
		"":                          "PASS",
		"a purse has room for more": "took 4 of 3 coins",
		"a purse may be overdrawn":  "took 9 of 3 coins",
		"coins stay in the purse":   "took 1 coins of an empty purse",
	} {
		out, err := tests.Command(t.Context(), bug).CombinedOutput()
		if (err == nil) != (bug == "") || !strings.Contains(string(out), says) {
			t.Errorf("with the bug %q: %v, without %q:\n%s", bug, err, says, out)
		}
	}
}

// What cannot be planted is not built, and the error says which bug it is and why.
func TestWhatCannotBePlanted(t *testing.T) {
	const file = product + "/purse.go"
	for want, bug := range map[string]Bug{
		`bug "twice": "p.coins" is 4 times in `: {"twice", file, "p.coins", "p.gold"},
		`bug "gone": "p.silver" is 0 times in`:  {"gone", file, "p.silver", "p.gold"},
		"is in no function":                     {"a constant", file, "const most = 3", "const most = 4"},
		"bug-1:3:4: p.gold undefined":           {"no Go", file, "p.coins -= n", "p.gold -= n"},
		`bug "nowhere": open /`:                 {"nowhere", "no/such.go", "x", "y"},
	} {
		if _, err := Tests(t.Context(), "../..", product, t.TempDir(), []Bug{bug}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", bug.Name, err, want)
		}
	}
}
