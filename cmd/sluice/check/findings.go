package check

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// writeFindings writes each problem and warning as compilers do, so that editors find the place, and below it the line
// with a caret. Example: rules/edge.yaml:12:5: error: MESSAGE. The parser's own prefixes are left out, since the place
// says as much.
func (r *checked) writeFindings(out io.Writer) {
	for _, f := range r.findings() {
		message := strings.TrimPrefix(strings.TrimPrefix(f.Message, "config error, "), "coordination: ")
		fmt.Fprintf(out, "%s: %s: %s\n%s", f.place, f.Severity, message, f.excerpt)
	}
}

// summary is what a reader takes away if there is no problem. Its first line is that of envoyproxy/ratelimit's config
// check, for scripts that look for it. The fingerprint is that of /rlconfig and the console.
func (r *checked) summary() string {
	says := "all rate limit configs ok"
	if n := len(r.warnings); n > 0 {
		says = "these rules would be loaded, but see the " + cli.Counted(n, "finding") + " above"
	}
	return fmt.Sprintf("%s\nrules %s: %s in %s", says, r.rules.Fingerprint(),
		cli.Counted(len(r.rules.All()), "rule"), cli.Counted(len(r.texts), "file"))
}

// finding is a problem or a warning, for programs.
type finding struct {
	Severity string      `json:"severity"` // error or warning
	Kind     config.Kind `json:"kind"`
	File     string      `json:"file"`
	Line     int         `json:"line,omitempty"` // from 1; none: the file as a whole
	Column   int         `json:"column,omitempty"`
	Message  string      `json:"message"`
	place    string      // as editors and compilers write it
	excerpt  string
}

// findings are the problems first, then the warnings. It is never nil, so that JSON has a list. A warning of a fatal
// kind counts as an error: a server would load the rules, and they do the opposite of their purpose.
func (r *checked) findings() []finding {
	all := []finding{}
	add := func(severity string, ps config.Problems) {
		for _, p := range ps {
			f := finding{
				Severity: severity, Kind: p.Kind, File: p.Place.File, Message: p.Message, place: p.Place.String(),
			}
			// An excerpt needs a line: the text of the file around it, with a caret.
			if f.place != f.File { // it has a line
				f.Line, f.Column = p.Place.Line, p.Place.Column
				f.excerpt = config.Excerpt(r.text(p.Place.File), p.Place)
			}
			if p.Kind.Fatal() {
				f.Severity = "error"
			}
			all = append(all, f)
		}
	}
	add("error", r.problems)
	add("warning", r.warnings)
	return all
}

// text is the text of a file by its name; nil: it is unknown.
func (r *checked) text(name string) []byte {
	for _, t := range r.texts {
		if t.Name == name {
			return t.Data
		}
	}
	return nil
}

// checkReport is what --json prints.
type checkReport struct {
	Good        bool            `json:"good"` // a server would load them
	Fingerprint string          `json:"fingerprint,omitempty"`
	Files       int             `json:"files"`
	Findings    []finding       `json:"findings"`
	Nodes       int             `json:"nodes"`
	Store       *store.Promise  `json:"store,omitempty"` // that --store names
	Rules       []declared      `json:"rules,omitempty"`
	Changes     []config.Change `json:"changes,omitempty"`
}

// declared is what a rule promises, for each key and window. Texts are for people, and Bounds for programs. Both are of
// the same calculation.
type declared struct {
	Rule        string           `json:"rule"`
	Limit       string           `json:"limit"`
	Mode        string           `json:"mode"`
	Over        ratelimit.Tokens `json:"over_admission_tokens"`
	OverPercent float64          `json:"over_admission_percent"`
	Note        string           `json:"note,omitempty"`
	Under       string           `json:"under_admission,omitempty"`
	Wait        string           `json:"longest_wait,omitempty"`
	StoreOps    string           `json:"store_operations,omitempty"`
	Outage      string           `json:"in_an_outage,omitempty"`
	Loss        ratelimit.Tokens `json:"over_admission_when_data_is_lost"`
	// Bounds is the same and more as numbers, whose units are in their names.
	Bounds declare.Bounds `json:"bounds"`
	// Hold is of a rule whose requests hold an estimate.
	Hold *declare.HoldBounds `json:"hold,omitempty"`
	// NextMonths is when the next billing months begin, of a rule that has such.
	NextMonths []string `json:"next_billing_months,omitempty"`
}

// asJSON has rules only if all are good.
func (r *checked) asJSON(c *Command) checkReport {
	v := checkReport{Files: len(r.texts), Findings: r.findings(), Nodes: c.Nodes, Store: c.promise}
	if r.rules == nil {
		return v
	}
	v.Good, v.Fingerprint = true, r.rules.Fingerprint()
	if r.before != nil {
		v.Changes = config.Changes(r.before, r.rules)
	}
	for _, rule := range slices.Concat(r.rules.All(), r.overridden) {
		v.Rules = append(v.Rules, c.declared(rule))
	}
	return v
}

// An unlimited rule has no bounds, so it has only its name.
func (c *Command) declared(rule *ratelimit.Rule) declared {
	b := c.bounds(rule)
	d := declared{Rule: rule.FullName(), Limit: "unlimited", Mode: rule.Coordination.Mode.String(), Bounds: b}
	if b.Unlimited {
		return d
	}
	d.Limit = rule.Limit.String()
	d.Over = b.Over.Tokens
	d.OverPercent = b.Over.Percent(rule.Limit.Capacity())
	d.Note = b.Over.Note()
	d.Under = b.Under.String()
	d.Wait = b.Wait.String()
	d.StoreOps = b.StoreOps.String()
	d.Outage = b.OnOutage.String()
	d.Loss = b.OnLoss
	// The bounds of a hold come in addition to those of its rule.
	if hold, ok := declare.HoldOf(rule); ok {
		hold.Over = c.heldOver(rule, &hold)
		d.Hold = &hold
	}
	if rule.Limit.Calendar != 0 {
		d.NextMonths = nextMonths(rule, time.Now())
	}
	return d
}

// sarif is the findings in the form that code hosts read: SARIF 2.1.0. Paths are relative with slashes, because code
// hosts look for the file in the repository. Columns count code points, as the parser's do.
func (r *checked) sarif(version Version) map[string]any {
	type object = map[string]any
	rules := make([]object, 0, len(config.Kinds))
	for _, k := range config.Kinds {
		rules = append(rules, object{"id": k.Kind, "shortDescription": object{"text": k.Meaning}})
	}
	results := []object{}
	for _, f := range r.findings() {
		location := object{"artifactLocation": object{"uri": strings.TrimPrefix(filepath.ToSlash(f.File), "./")}}
		if f.Line > 0 {
			location["region"] = object{"startLine": f.Line, "startColumn": max(1, f.Column)}
		}
		results = append(results, object{
			"ruleId": f.Kind, "level": f.Severity, "message": object{"text": f.Message},
			"locations": []object{{"physicalLocation": location}},
		})
	}
	return object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{
			"tool":       object{"driver": object{"name": "sluice", "semanticVersion": version, "rules": rules}},
			"columnKind": "unicodeCodePoints", "results": results,
		}},
	}
}
