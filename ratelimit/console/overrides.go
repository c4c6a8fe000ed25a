package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Bounds of requests for overrides.
const (
	overridesAtOnce  = 32      // concurrent requests at a node
	overrideBody     = 4 << 10 // bytes of one override
	overridesOfAPage = 10_000
	defaultPage      = 100
)

// Overridden is an override in answers.
//
// The requests are those of HTTP for one resource: PUT sets, DELETE removes, GET reads. ETag and If-Match have the
// version, so that two authors do not overwrite each other's change unseen.
type Overridden struct {
	Domain string `json:"domain"`
	// Descriptor has the form of a query, key=value&key=value.
	Descriptor string        `json:"descriptor"`
	Rule       string        `json:"rule,omitempty"` // none: no current rule has the key
	Limit      OverrideLimit `json:"limit"`
	Unit       string        `json:"unit,omitempty"`
	InForce    string        `json:"in_force,omitempty"` // the limit, with the rule's ceiling
	Expires    time.Time     `json:"expires,omitzero"`
	Set        time.Time     `json:"set"`
	By         string        `json:"by"`
	Reason     string        `json:"reason"`
	Version    string        `json:"version"` // for If-Match, in quotes
}

// OverrideLimit is a number of requests, or "unlimited".
type OverrideLimit struct {
	Requests  ratelimit.Tokens
	Unlimited bool
}

const unlimited = "unlimited"

// String is the form that ParseOverrideLimit reads.
func (l OverrideLimit) String() string {
	if l.Unlimited {
		return unlimited
	}
	return strconv.FormatInt(int64(l.Requests), 10)
}

// ParseOverrideLimit reads a number of requests, or unlimited.
func ParseOverrideLimit(text string) (l OverrideLimit, err error) {
	if text == unlimited {
		return OverrideLimit{Unlimited: true}, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > uint64(ratelimit.MaxLimit) {
		return l, fmt.Errorf("limit is %.40q, must be a whole number from 0 to %d, or unlimited", text,
			ratelimit.MaxLimit)
	}
	return OverrideLimit{Requests: ratelimit.Tokens(n)}, nil
}

// MarshalJSON writes a number, or "unlimited".
func (l OverrideLimit) MarshalJSON() ([]byte, error) {
	if l.Unlimited {
		return json.Marshal(unlimited)
	}
	return json.Marshal(l.Requests)
}

// UnmarshalJSON reads the form of MarshalJSON.
func (l *OverrideLimit) UnmarshalJSON(text []byte) (err error) {
	s := string(text)
	if s == strconv.Quote(unlimited) {
		s = unlimited
	}
	*l, err = ParseOverrideLimit(s)
	return err
}

// OverrideChange is the body of a PUT. Example: {"limit": 5000, "expires": "24h", "reason": "launch"}.
type OverrideChange struct {
	Limit   *OverrideLimit `json:"limit"`
	Unit    string         `json:"unit,omitempty"`    // the rule's, which is the default
	Expires string         `json:"expires,omitempty"` // RFC 3339, or a duration from now
	Reason  string         `json:"reason"`
}

// UnmarshalJSON reads each field once, by its exact name, so that the body cannot be read in two ways. encoding/json
// would accept Limit in place of limit, and of two fields take the last. A proxy that checks the body might take the
// first.
func (s *OverrideChange) UnmarshalJSON(text []byte) error {
	fields := map[json.Token]any{"limit": &s.Limit, "unit": &s.Unit, "expires": &s.Expires, "reason": &s.Reason}
	d := json.NewDecoder(bytes.NewReader(text)) // which is valid JSON
	if first, _ := d.Token(); first != json.Delim('{') {
		return errors.New("it is no object")
	}
	for d.More() {
		name, _ := d.Token()
		if fields[name] == nil {
			return fmt.Errorf("%.40q is no field, or there twice", name)
		}
		if err := d.Decode(fields[name]); err != nil {
			return err
		}
		delete(fields, name)
	}
	return nil
}

// guarded is a request for overrides: it needs the token, and its concurrency is bounded. The token is checked first,
// so that strangers cannot use up the places.
func (c *console) guarded(what string, do handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := c.authorized(r, what); err != nil {
			return err
		}
		select {
		case c.changing <- struct{}{}:
			defer func() { <-c.changing }()
		default:
			return tooMany("too many questions and changes of overrides at once")
		}
		return do(w, r)
	}
}

// domain is the domain of a name.
func (c *console) domain(name string) (*config.Domain, error) {
	rules := c.Metrics.Store.Rules()
	d := rules.Domain(name)
	if d == nil {
		return nil, refusing(http.StatusNotFound, "the domain %.60q has no rules%s", name,
			ratelimit.DidYouMean(name, rules.DomainNames(mostNames)))
	}
	return d, nil
}

// override is the override of a change under a rule. It checks what the rule allows: a number within max_override, the
// unit of the rule, an end in the future, and a reason on one line.
func (s *OverrideChange) override(rule *ratelimit.Rule, now time.Time) (o overrides.Override, err error) {
	l := &rule.Limit
	if s.Limit == nil {
		return o, errors.New("limit is missing: a whole number, or unlimited")
	}
	o.Requests = s.Limit.Requests
	o.Unlimited = s.Limit.Unlimited
	o.Reason = s.Reason
	o.Per = l.Per()
	// max_override bounds a mistyped number.
	if o.Requests > l.Ceiling {
		return o, fmt.Errorf("limit is %d, must be at most the rule's max_override %d", o.Requests, l.Ceiling)
	}
	if why := rule.WhyRefusesAll(&o.Override); why != "" {
		return o, errors.New(why)
	}
	u, known := ratelimit.ParseUnit(s.Unit)
	if s.Unit != "" && (!known || u.Wire() != l.Unit.Wire() || l.Multiplier > 1) {
		return o, fmt.Errorf(
			"unit is %.40q, and the rule's limit is %s: leave unit out, and write the limit for that period", s.Unit, l)
	}
	o.Expires, err = expiry(s.Expires, now)
	if err != nil {
		return o, err
	}
	return o, overrideText("reason", s.Reason)
}

// longestOverride bounds the time until an expiry.
const longestOverride = 100 * 365 * 24 * time.Hour

// expiry is the end of an override; 0: never. A duration counts from now by this node's clock. The store's clock
// decides when it ends.
func expiry(text string, now time.Time) (ratelimit.LedgerTime, error) {
	if text == "" {
		return 0, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		in, bad := time.ParseDuration(text)
		if bad != nil {
			return 0, fmt.Errorf("expires is %.40q, must be a time like 2027-01-31T00:00:00Z, or a duration like 24h",
				text)
		}
		at = now.Add(in)
	}
	if !at.After(now) || at.Sub(now) > longestOverride {
		return 0, fmt.Errorf("expires is %.40q, must be later than now, and within 100 years", text)
	}
	return ratelimit.LedgerTime(at.UnixMicro()), nil
}

// overrideText checks an author or a reason. Both go into logs and tables of a terminal, where control characters would
// forge lines.
func overrideText(what, text string) error {
	if len(text) > ratelimit.MaxOverrideText {
		return fmt.Errorf("%s has %d bytes, must be at most %d", what, len(text), ratelimit.MaxOverrideText)
	}
	if strings.ContainsFunc(text, unprintable) {
		return fmt.Errorf("%s is not one line of UTF-8: %.60q", what, text)
	}
	return nil
}

// unprintable reports characters that break a line, and the mark of invalid UTF-8.
func unprintable(r rune) bool { return r < ' ' || strings.ContainsRune("\x7f\u2028\u2029\ufffd", r) }

// author is the author of a change: the header From. Without a name in From, the address of the caller is the best
// there is.
func author(r *http.Request) (string, error) {
	if from := r.Header.Get("From"); from != "" {
		return from, overrideText("the header From", from)
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return "ADMIN_TOKEN at " + host, nil
}

// condition is the override that a change replaces, by its version. If-Match: * means any existing one. A change
// without a condition replaces any override. Versions are times of the store in microseconds, in quotes as HTTP has
// them.
func (c *console) condition(r *http.Request, a *ratelimit.Ask) (table.Expected, error) {
	matches, nones := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	match, none := strings.Join(matches, ","), strings.Join(nones, ",")
	switch {
	case len(matches)+len(nones) == 0:
		return table.Any, nil
	case match == "" && none == "*":
		return table.None, nil
	case match == "*" && none == "":
		o, ok := c.Overrides.Get(a.Key)
		if !ok {
			return 0, table.ErrChanged
		}
		return o.Set, nil
	}
	text, _ := strconv.Unquote(match) // "" if it has no quotes, which is no version
	version, err := strconv.ParseInt(text, 10, 64)
	if err != nil || version <= 0 || none != "" {
		return 0, refusing(http.StatusBadRequest,
			"If-Match is %.60q and If-None-Match %.60q: give one of "+
				"If-Match with the ETag of an answer, If-Match: * and If-None-Match: *", match, none)
	}
	return ratelimit.LedgerTime(version), nil
}

// setOverride changes an override, counts it and logs it. nil removes it. The log line is the record of who changed
// what. It is written also when the change failed.
func (c *console) setOverride(from *http.Request, a *ratelimit.Ask, descriptor, by string, o *overrides.Override,
	expected table.Expected,
) (overrides.Override, error) {
	ctx, cancel := context.WithTimeout(from.Context(), askTimeout)
	defer cancel()
	is, err := c.Overrides.Set(ctx, a.Key, o, expected)
	about := []any{"by", by, "from", from.RemoteAddr, "rule", a.Rule.FullName(), "descriptor", descriptor}
	if o != nil {
		about = append(about, "limit", OverrideLimit{o.Requests, o.Unlimited}.String(), "reason", o.Reason)
		if o.Expires != 0 {
			about = append(about, "expires", timeOf(o.Expires))
		}
	}
	result, what, level := metrics.OverrideSet, "an override was set", slog.LevelInfo
	switch {
	case errors.Is(err, table.ErrChanged):
		result = metrics.OverrideConflict
	case err != nil:
		result = metrics.OverrideFailed
	case o == nil:
		result, what = metrics.OverrideRemoved, "an override was removed"
	}
	if err != nil {
		level = slog.LevelWarn
		what = "an override did not change"
		about = append(about, "error", err)
	}
	c.Metrics.Overrides.Count(result)
	c.Log.Log(ctx, level, what, about...)
	return is, err
}

// timeOf is a time of the store. For 0 it is the zero time, which JSON leaves out.
func timeOf(at ratelimit.LedgerTime) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(at)).UTC()
}

// shown is an override of a rule's key, for an answer. Without a rule, nothing is in force: the override stays in the
// table until it ends, or a rule has its key again.
func shown(rule *ratelimit.Rule, domain, descriptor string, o *overrides.Override) Overridden {
	v := Overridden{
		Domain: domain, Descriptor: descriptor, Limit: OverrideLimit{o.Requests, o.Unlimited},
		Expires: timeOf(o.Expires), Set: timeOf(o.Set), By: o.By, Reason: o.Reason,
		Version: strconv.FormatInt(int64(o.Set), 10),
	}
	if rule == nil {
		return v
	}
	v.Rule = rule.Path
	if is, ok := o.Rule(rule); ok {
		v.InForce = is.Limit.String()
	}
	if rule.Limit.Multiplier <= 1 {
		v.Unit = rule.Limit.Unit.String()
	}
	return v
}

// askedOverride is the key of a request for one override, which its rule allows, and its descriptor. Its refusals
// differ by code: 400 a query that cannot be read, 404 no rule for it, 422 a rule without overrides.
func (c *console) askedOverride(r *http.Request) (*ratelimit.Ask, string, error) {
	entries, page, err := entriesOf(r.URL.RawQuery)
	switch {
	case err != nil:
		return nil, "", refusing(http.StatusBadRequest, "%v", err)
	case len(page) > 0:
		return nil, "", refusing(http.StatusBadRequest,
			"prefix, after and limit are of lists: for an entry with such a key "+
				"write entry=KEY=VALUE")
	case len(entries) == 0:
		return nil, "", refusing(http.StatusBadRequest,
			"the query has no entries: write KEY=VALUE&KEY=VALUE, in the order "+
				"of the descriptor")
	}
	d, err := c.domain(r.PathValue("domain"))
	if err != nil {
		return nil, "", err
	}
	rule, key := d.Match(entries, nil)
	if rule == nil {
		return nil, "", refusing(http.StatusNotFound, "no rule matches the descriptor %.80q at its full depth: try "+
			"sluice explain", DescriptorText(entries))
	}
	if why := rule.WhyNoOverrides(); why != "" {
		return nil, "", refusing(http.StatusUnprocessableEntity, "the limits of %s cannot be overridden: %s",
			rule.FullName(), why)
	}
	if _, of, ok := descriptorOf(ratelimit.DescriptorKey(key)); ok {
		entries = of // with the pattern, whose values share the limit
	}
	return &ratelimit.Ask{Rule: rule, Key: key, Kind: ratelimit.Peek}, DescriptorText(entries), nil
}

// putOverride reads one JSON value of bounded size. Anything behind it is refused.
func (c *console) putOverride(w http.ResponseWriter, r *http.Request) error {
	var change OverrideChange
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, overrideBody))
	if err := body.Decode(&change); err != nil {
		return refusing(http.StatusBadRequest,
			"the body is not {\"limit\": N, \"reason\": TEXT} of at most %d bytes: %v",
			overrideBody, err)
	}
	if _, err := body.Token(); !errors.Is(err, io.EOF) {
		return refusing(http.StatusBadRequest, "the body has more than one value")
	}
	return c.changeOverride(w, r, &change)
}

func (c *console) deleteOverride(w http.ResponseWriter, r *http.Request) error {
	return c.changeOverride(w, r, nil)
}

// changeOverride sets an override, or removes it if there is no change to set. The steps: find the key, check the
// author and the change, read the condition, set, and answer with the record as the store has it.
func (c *console) changeOverride(w http.ResponseWriter, r *http.Request, change *OverrideChange) error {
	a, descriptor, err := c.askedOverride(r)
	if err != nil {
		return err
	}
	by, err := author(r)
	if err != nil {
		return refusing(http.StatusUnprocessableEntity, "%v", err)
	}
	var o *overrides.Override
	if change != nil {
		set, err := change.override(a.Rule, time.Now())
		if err != nil {
			c.Metrics.Overrides.Count(metrics.OverrideRefused)
			return refusing(http.StatusUnprocessableEntity, "%v", err)
		}
		set.By = by
		set.Of = a.Rule.Domain + "?" + descriptor
		o = &set
	}
	expected, err := c.condition(r, a)
	if err != nil {
		return err
	}
	is, err := c.setOverride(r, a, descriptor, by, o, expected)
	switch {
	case err != nil:
		return err
	case o == nil:
		answer(w, map[string]string{"done": "the limit of the file is in force: " + a.Rule.Limit.String()})
		return nil
	// This node's clock is behind the store's: the override ended as soon as it was set.
	case is.Expires != 0 && is.Expires <= is.Set:
		return refusing(http.StatusUnprocessableEntity, "expires is %.40q, and that is over by the clock of "+
			"the store: the limit of the file is in force", change.Expires)
	}
	answerOverride(w, a.Rule, descriptor, &is)
	return nil
}

// answerOverride answers an override, with its version in HTTP's form.
func answerOverride(w http.ResponseWriter, rule *ratelimit.Rule, descriptor string, o *overrides.Override) {
	v := shown(rule, rule.Domain, descriptor, o)
	w.Header().Set("ETag", strconv.Quote(v.Version))
	answer(w, v)
}

// getOverrides answers one override, or for a query without entries a page of the domain's.
func (c *console) getOverrides(w http.ResponseWriter, r *http.Request) error {
	entries, _, err := entriesOf(r.URL.RawQuery)
	if err == nil && len(entries) == 0 {
		return c.listOverrides(w, r)
	}
	a, descriptor, err := c.askedOverride(r)
	if err != nil {
		return err
	}
	o, ok := c.Overrides.Get(a.Key)
	if !ok {
		return refusing(http.StatusNotFound, "%s has no override for %.80q: the limit of the file is in force, %s",
			a.Rule.FullName(), descriptor, a.Rule.Limit)
	}
	answerOverride(w, a.Rule, descriptor, &o)
	return nil
}
