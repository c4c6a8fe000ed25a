package rls

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-gate/sluice/ratelimit"
)

// trace adds the decision and its source to the call's span, if it is recorded. Descriptors' values stay out of it.
// They may be secrets, such as API keys.
func (c *call) trace(ctx context.Context, err error) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if err != nil {
		span.RecordError(err)
		return
	}
	rules, sources := make([]string, 0, len(c.matches)), make([]string, 0, len(c.matches))
	for i := range c.matches {
		rule, source := "", ""
		if m := &c.matches[i]; !m.bare() {
			// A rule of a request's override has strings of the request in it, whose bytes are pooled.
			rule, source = strings.Clone(m.rule.Path), ratelimit.Sources[m.verdict.Source]
		}
		rules, sources = append(rules, rule), append(sources, source)
	}
	code := "OK"
	if c.over {
		code = "OVER_LIMIT"
	}
	span.SetAttributes(
		attribute.String("ratelimit.domain", strings.Clone(c.request.domain)), attribute.String("ratelimit.code", code),
		attribute.StringSlice("ratelimit.rules", rules), attribute.StringSlice("ratelimit.sources", sources),
	)
}
