package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// entriesOf are the entries of a query, in their order: KEY=VALUE, or entry=KEY=VALUE for any key. The parameters of
// a page are separate: prefix, after and limit.
func entriesOf(query string) (entries []config.Entry, page url.Values, err error) {
	page = url.Values{}
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		key, value, found := strings.Cut(part, "=")
		name, bad := url.QueryUnescape(key)
		text, worse := url.QueryUnescape(value)
		if name == "entry" {
			name, text, found = strings.Cut(text, "=")
		} else if name == "prefix" || name == "after" || name == "limit" {
			page.Set(name, text)
			continue
		}
		if bad != nil || worse != nil || !found || name == "" {
			return nil, nil,
				fmt.Errorf("%.60q is not an entry of a descriptor: write KEY=VALUE, with %%26 for & and %%3D for =",
					part)
		}
		entries = append(entries, config.Entry{Key: name, Value: text})
	}
	return entries, page, nil
}

// ParseDescriptor reads a descriptor in the form of queries and files: KEY=VALUE&KEY=VALUE, or entry=KEY=VALUE.
func ParseDescriptor(text string) ([]config.Entry, error) {
	entries, page, err := entriesOf(strings.ReplaceAll(text, "+", "%2B")) // in a file, + is not a space
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == '&' || r == '=' })
	if slices.ContainsFunc(parts, func(part string) bool { return strings.TrimSpace(part) != part }) {
		err = fmt.Errorf("the descriptor is %.60q, with a blank before or after a key or a value: if it is meant, "+
			"write %%20", text)
	}
	if err == nil && (len(entries) == 0 || len(page) > 0) {
		err = fmt.Errorf("the descriptor is %.60q: write KEY=VALUE&KEY=VALUE, or entry=KEY=VALUE", text)
	}
	return entries, err
}

// escaped is a text for queries and for files, which differ in the meaning of +.
func escaped(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// DescriptorText is a descriptor in the form of ParseDescriptor.
func DescriptorText(entries []config.Entry) string {
	var b strings.Builder
	for i, e := range entries {
		if i > 0 {
			b.WriteByte('&')
		}
		switch e.Key {
		case "entry", "prefix", "after", "limit":
			b.WriteString("entry=" + escaped(e.Key+"="+e.Value))
		default:
			b.WriteString(escaped(e.Key) + "=" + escaped(e.Value))
		}
	}
	return b.String()
}

// entriesOfName are the domain and the entries in a key's name: PERIOD|DOMAIN|KEY=VALUE|KEY=VALUE, with ~ before a
// pattern whose values share a budget. ok is false for the digest of a long key.
func entriesOfName(name string) (domain string, entries []config.Entry, ok bool) {
	parts := strings.Split(name, "|")
	if len(parts) < 3 {
		return "", nil, false
	}
	domain, err := url.PathUnescape(parts[1])
	for _, part := range parts[2:] {
		at := strings.IndexAny(part, "=~")
		if err != nil || at < 0 {
			return "", nil, false
		}
		var e config.Entry
		var bad error
		e.Key, err = url.PathUnescape(part[:at])
		e.Value, bad = url.PathUnescape(part[at+1:])
		if err == nil {
			err = bad
		}
		entries = append(entries, e)
	}
	return domain, entries, err == nil
}

// listed is an override of a list. Its rule is the current rule of the key.
func (c *console) listed(o *ratelimit.NamedOverride) Overridden {
	domain, entries, ok := entriesOfName(o.Key)
	if !ok {
		return shown(nil, o.Key, &o.Override)
	}
	if d := c.Metrics.Store.Rules().Domain(domain); d != nil {
		if rule, key := d.Match(entries, nil); rule != nil && c.KeyName(key) == o.Key {
			return shown(rule, DescriptorText(entries), &o.Override)
		}
	}
	v := shown(nil, DescriptorText(entries), &o.Override)
	v.Domain = domain
	return v
}

// prefixes are the beginnings of the names of a domain's keys, in their order: one for each period of its rules.
func (c *console) prefixes(domain, descriptor string) ([]string, error) {
	last, key := descriptor, []byte(nil)
	var whole []config.Entry
	if at := strings.LastIndexByte(descriptor, '&'); at >= 0 {
		entries, page, err := entriesOf(descriptor[:at])
		if err == nil && len(page) > 0 {
			err = fmt.Errorf("prefix is %.60q: write entry=KEY%%3DVALUE for a key named prefix, after or limit",
				descriptor)
		}
		if err != nil {
			return nil, err
		}
		last, whole = descriptor[at+1:], entries
	}
	name, value, valued := strings.Cut(last, "=")
	name, err := url.QueryUnescape(name)
	value, bad := url.QueryUnescape(value)
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("prefix is %.60q: %w", descriptor, err)
	}
	if name == "entry" && valued {
		name, value, valued = strings.Cut(value, "=")
	}
	periods := map[string]bool{}
	for _, rule := range c.Metrics.Store.Rules().All() {
		if key = ratelimit.AppendPrefix(key[:0], domain, rule.Limit); rule.Domain != domain || periods[string(key)] {
			continue
		}
		periods[string(key)] = true
	}
	var all []string
	for period := range periods {
		key := []byte(period)
		for _, e := range whole { // a value with a star is a pattern, as lists have it
			key = ratelimit.AppendEntry(key, e.Key, e.Value, ratelimit.ValueOf(strings.Contains(e.Value, "*")))
		}
		text := c.KeyName(key) + "|"
		if descriptor != "" {
			text = c.KeyName(ratelimit.AppendEntry(bytes.Clone(key), name, value, ratelimit.OfRequest))
		}
		if descriptor != "" && !valued {
			text = strings.TrimSuffix(text, "=")
		}
		if all = append(all, text); valued { // it may begin a pattern
			at := strings.LastIndexByte(text, '|')
			all = append(all, text[:at]+strings.Replace(text[at:], "=", "~", 1))
		}
	}
	slices.Sort(all)
	return all, nil
}

// Page is a part of a list of overrides.
type Page struct {
	Overrides []Overridden `json:"overrides"`
	Next      string       `json:"next,omitempty"` // for after; none on the last page
}

// listOverrides answers a page of the overrides of a domain, or of all domains.
func (c *console) listOverrides(w http.ResponseWriter, r *http.Request) error {
	entries, page, err := entriesOf(r.URL.RawQuery)
	n := defaultPage
	if text := page.Get("limit"); err == nil && text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > overridesOfAPage {
			err = fmt.Errorf("limit is %.40q, must be between 1 and %d", text, overridesOfAPage)
		}
	}
	prefixes, domain := []string{""}, r.PathValue("domain")
	if err == nil && domain != "" {
		if _, err := c.domain(domain); err != nil {
			return err
		}
		prefixes, err = c.prefixes(domain, page.Get("prefix"))
	}
	if err == nil && domain == "" && (page.Get("prefix") != "" || len(entries) > 0) {
		err = fmt.Errorf("descriptors are of a domain: ask for /v1/overrides/DOMAIN")
	}
	if err != nil {
		return refusing(http.StatusBadRequest, "%v", err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	v := Page{Overrides: []Overridden{}}
	for _, prefix := range prefixes {
		after := page.Get("after")
		if after < prefix {
			after = ""
		}
		all, err := c.Overrides.Overrides(ctx, c.Clock(), prefix, after, n-len(v.Overrides))
		if err != nil {
			return err
		}
		for i := range all {
			v.Overrides = append(v.Overrides, c.listed(&all[i]))
		}
		if len(v.Overrides) == n {
			v.Next = all[len(all)-1].Key
			break
		}
	}
	answer(w, v)
	return nil
}
