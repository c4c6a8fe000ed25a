package console

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
)

// entriesOf are the entries of a query, in their order: KEY=VALUE, or entry=KEY=VALUE for any key. The parameters of a
// page are separate: prefix, after and limit. The order of entries is part of a descriptor, so the query is not parsed
// into a map. A key with the name of a parameter is written as entry=limit=5.
func entriesOf(query string) (entries []config.Entry, page url.Values, err error) {
	page = url.Values{}
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		key, value, found := strings.Cut(part, "=")
		name, bad := url.QueryUnescape(key)
		text, worse := url.QueryUnescape(value)
		switch name {
		case "entry":
			name, text, found = strings.Cut(text, "=")
		case "prefix", "after", "limit":
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

// ParseDescriptor reads a descriptor in the form of queries and files: KEY=VALUE&KEY=VALUE, or entry=KEY=VALUE. Blanks
// at the ends are refused: they come from copying, and would make another key.
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

// descriptorOf are the domain and the entries of a table's key. ok is false for the digest of a long key.
func descriptorOf(key []byte) (domain string, entries []config.Entry, ok bool) {
	texts, ok := ratelimit.ReadDescriptor(key)
	if !ok {
		return "", nil, false
	}
	for i := 1; i < len(texts); i += 2 {
		entries = append(entries, config.Entry{Key: texts[i], Value: texts[i+1]})
	}
	return texts[0], entries, true
}

// listed is an override of a list. Its rule is the current rule of the key. A long key is a digest in the table. Its
// descriptor then comes from the record's own text (Of).
func (c *console) listed(o *overrides.Override) Overridden {
	domain, entries, ok := descriptorOf([]byte(o.Key))
	if !ok {
		var text string
		domain, text, _ = strings.Cut(o.Of, "?")
		entries, _, _ = entriesOf(text)
	}
	var rule *ratelimit.Rule
	if d := c.Metrics.Store.Rules().Domain(domain); d != nil {
		match, key := d.Match(entries, nil)
		if match != nil && string(ratelimit.DescriptorKey(key)) == o.Key {
			rule = match
		}
	}
	return shown(rule, domain, DescriptorText(entries), o)
}

// Page is a part of a list of overrides.
type Page struct {
	Overrides []Overridden `json:"overrides"`
	Next      string       `json:"next,omitempty"` // for after; none on the last page
}

// listOverrides answers a page of the overrides of a domain, or of all domains. A page continues behind the last key
// that it showed. So overrides that are set or removed meanwhile move no others to another page.
func (c *console) listOverrides(w http.ResponseWriter, r *http.Request) error {
	entries, page, err := entriesOf(r.URL.RawQuery)
	n := defaultPage
	if text := page.Get("limit"); text != "" {
		n, err = strconv.Atoi(text)
		if err != nil || n < 1 || n > overridesOfAPage {
			err = fmt.Errorf("limit is %.40q, must be between 1 and %d", text, overridesOfAPage)
		}
	}
	after, bad := base64.RawURLEncoding.DecodeString(page.Get("after"))
	domain := r.PathValue("domain")
	prefix, worse := url.QueryUnescape(page.Get("prefix"))
	switch {
	case err != nil:
	case worse != nil:
		err = fmt.Errorf("prefix is %.60q: %w", page.Get("prefix"), worse)
	case bad != nil:
		err = fmt.Errorf("after is %.60q, must be next of an answer", page.Get("after"))
	case domain == "" && (prefix != "" || len(entries) > 0):
		err = fmt.Errorf("descriptors are of a domain: ask for /v1/overrides/DOMAIN")
	}
	if err != nil {
		return refusing(http.StatusBadRequest, "%v", err)
	}
	if domain != "" {
		if _, err := c.domain(domain); err != nil {
			return err
		}
	}
	v, last := Page{Overrides: []Overridden{}}, ""
	// It reads one override more than a page has: only then is there a next page.
	for o := range c.Overrides.All(string(after)) {
		if len(v.Overrides) == n {
			v.Next = base64.RawURLEncoding.EncodeToString([]byte(last))
			break
		}
		is := c.listed(&o)
		text, _ := url.QueryUnescape(is.Descriptor) // which escaped it
		if (domain == "" || is.Domain == domain) && strings.HasPrefix(text, prefix) {
			v.Overrides, last = append(v.Overrides, is), o.Key
		}
	}
	answer(w, v)
	return nil
}
