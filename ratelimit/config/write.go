package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// WriteFile writes a file as YAML: a line for each field, and every string in quotes. It stops
// after most bytes. The error is about that, or about metadata that JSON cannot represent.
func WriteFile(f *File, most int) ([]byte, error) {
	w := writer{most: most}
	w.text("domain", f.Domain)
	w.inherited(&f.Defaults)
	if err := w.descriptors(f.Descriptors); err != nil {
		return w.out, err
	}
	if len(w.out) > most {
		return w.out, w.full()
	}
	return w.out, nil
}

// writer writes YAML. Strings are quoted as in Go. YAML reads them alike if they are UTF-8.
type writer struct {
	out    []byte
	most   int // bytes of out
	indent int
	item   bool // the next line is the first of a list's item
}

func (w *writer) full() error {
	return fmt.Errorf("as a file it exceeds %d bytes: use fewer rules", w.most)
}

func (w *writer) line(key string) {
	for range w.indent - 1 {
		w.out = append(w.out, "  "...)
	}
	if w.indent > 0 {
		lead := "  "
		if w.item {
			lead = "- "
		}
		w.out = append(w.out, lead...)
	}
	w.item = false
	w.out = append(append(w.out, key...), ':')
}

func (w *writer) field(key, value string) {
	w.line(key)
	w.out = append(append(append(w.out, ' '), value...), '\n')
}

func (w *writer) text(key, value string) {
	w.line(key)
	w.out = append(strconv.AppendQuote(append(w.out, ' '), value), '\n')
}

// texts writes those that are not empty.
func (w *writer) texts(all ...[2]string) {
	for _, f := range all {
		if f[1] != "" {
			w.text(f[0], f[1])
		}
	}
}

type namedFlag struct {
	key string
	set bool
}

// flags writes those that are set.
func (w *writer) flags(all ...namedFlag) {
	for _, f := range all {
		if f.set {
			w.field(f.key, "true")
		}
	}
}

// open begins a map or a list below a key. The result ends it.
func (w *writer) open(key string) (end func()) {
	w.line(key)
	w.out = append(w.out, '\n')
	w.indent++
	return func() { w.indent-- }
}

func (w *writer) descriptors(all []Descriptor) error {
	if len(all) == 0 {
		return nil
	}
	defer w.open("descriptors")()
	for i := range all {
		if len(w.out) > w.most {
			return w.full()
		}
		if err := w.descriptor(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) descriptor(d *Descriptor) error {
	w.item = true
	w.text("key", d.Key)
	w.texts([2]string{"value", d.Value})
	if d.Limit != nil {
		w.limit(d.Limit)
	}
	w.flags(namedFlag{"shadow_mode", d.Shadow}, namedFlag{"quota_mode", d.Quota},
		namedFlag{"detailed_metric", d.Detailed},
		namedFlag{"value_to_metric", d.ValueToMetric}, namedFlag{"share_threshold", d.ShareThreshold})
	if d.Metadata != nil {
		text, err := flow(d.Metadata)
		if err != nil {
			return fmt.Errorf("descriptor %s: metadata: %w", cut(d.Segment(), maxName), err)
		}
		w.field("metadata", text)
	}
	w.inherited(&d.Inherited)
	return w.descriptors(d.Descriptors)
}

func (w *writer) limit(l *RateLimit) {
	defer w.open("rate_limit")()
	if l.Concurrency > 0 {
		w.field("concurrency", strconv.FormatInt(int64(l.Concurrency), 10))
		w.field("hold_ttl", cmp.Or(l.HoldTTL, ratelimit.DefaultHoldTTL).String())
	} else {
		w.field("requests_per_unit", strconv.FormatInt(int64(l.Requests), 10))
	}
	w.texts([2]string{"unit", l.Unit}, [2]string{"name", l.Name})
	if l.Multiplier > 0 {
		w.field("unit_multiplier", strconv.FormatInt(int64(l.Multiplier), 10))
	}
	w.flags(namedFlag{"unlimited", l.Unlimited})
	w.billing(l.Billing)
	if len(l.Replaces) == 0 {
		return
	}
	defer w.open("replaces")()
	for _, r := range l.Replaces {
		w.item = true
		w.text("name", r.Name)
	}
}

func (w *writer) billing(b *Billing) {
	if b == nil {
		return
	}
	defer w.open("billing")()
	w.field("day", strconv.FormatInt(int64(max(1, b.Day)), 10))
	w.texts([2]string{"time_zone", b.Zone})
}

func (w *writer) inherited(in *Inherited) {
	if in.Algorithm != nil {
		w.text("algorithm", in.Algorithm.String())
	}
	if in.Burst != nil {
		w.field("burst", strconv.FormatInt(int64(*in.Burst), 10))
	}
	if in.Overrides != nil {
		w.field("overrides", strconv.FormatBool(*in.Overrides))
	}
	if in.MaxOverride != nil {
		w.field("max_override", strconv.FormatInt(int64(*in.MaxOverride), 10))
	}
	w.hold(in.Hold)
	if len(in.Coordination) == 0 {
		return
	}
	defer w.open("coordination")()
	for i, s := range in.Coordination {
		if !s.ofLease() && !overruled(in.Coordination, i) {
			w.text(s.Field, s.Text)
		}
	}
	if !slices.ContainsFunc(in.Coordination, Setting.ofLease) {
		return
	}
	defer w.open("lease")()
	for i, s := range in.Coordination {
		if s.ofLease() && !overruled(in.Coordination, i) {
			w.text(strings.TrimPrefix(s.Field, leasePrefix), s.Text)
		}
	}
}

func (w *writer) hold(h *Hold) {
	if h == nil {
		return
	}
	defer w.open("hold")()
	for _, f := range h.Fields() {
		w.field(f.Name, f.Text)
	}
}

// leasePrefix begins the names of the fields of the block lease.
const leasePrefix = "lease."

func (s Setting) ofLease() bool { return strings.HasPrefix(s.Field, leasePrefix) }

// overruled tells whether a later setting has the same field.
func overruled(all []Setting, i int) bool {
	return slices.ContainsFunc(all[i+1:], func(s Setting) bool { return s.Field == all[i].Field })
}

// flow writes a value as JSON, which is YAML once characters that YAML forbids, or reads as an end
// of line, are escaped.
func flow(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r >= 0x7f && r <= 0x9f, r == 0xfeff, r == 0xfffe, r == 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String(), nil
}
