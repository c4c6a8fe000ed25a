package config

import (
	"encoding/json"
	"math"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// schema is a JSON Schema, or a part of one.
type schema = map[string]any

// SchemaID is where the schema of rule files is published.
const SchemaID = "https://raw.githubusercontent.com/sluice-gate/sluice/main/docs/rules.schema.json"

// Schema returns the JSON Schema (draft 7) of rule files, for editors. It has every
// field that files may have, and no other; what needs more than one file, or fields
// that fit together, only a check finds. Where files may write a flag or a number in
// several ways of YAML 1.1, the schema has the usual one.
func Schema() []byte {
	limit := object("How much may pass.", schema{
		"requests_per_unit": whole(0, "Tokens in each unit. 0 refuses everything; so does leaving it out."),
		"unit": described(schema{
			"anyOf": []schema{{"enum": ratelimit.UnitNames()}, {"type": "string", "pattern": unitPattern()}},
		}, "The period, in any case. A month has 30 days, a year 365."),
		"unit_multiplier": whole(1, "Units in a period; 1 unless said."),
		"concurrency": described(schema{"type": "integer", "minimum": 1, "maximum": ratelimit.MaxConcurrency},
			"Requests in flight at once, instead of requests_per_unit and unit. Envoy must bring holds back."),
		"hold_ttl": described(schema{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`},
			"With concurrency: how long a request counts whose end is not told, 1s to 24h; 10m unless said."),
		"billing": object("With unit: month and fixed_window: months that begin at a day's local midnight.", schema{
			"day": described(schema{"type": "integer", "minimum": 1, "maximum": 31},
				"Of the month; in shorter months the last day. 1 unless said."),
			"time_zone": text("By its IANA name, such as America/New_York; UTC unless said."),
		}),
		"unlimited": flagged("Nothing is limited; without unit."),
		"name":      text("Goes into answers, and can be replaced by other rules."),
		"replaces": list("Rules of these names are not counted when this one matches in the same request.",
			object("", schema{"name": text("rate_limit.name of the other rule.")}, "name")),
	})
	descriptor := object("Matches one entry of a request's descriptor.", withInherited(schema{
		"key":             text("The entry's key."),
		"value":           text("The entry's value; with '*': a pattern. None: every value, each with its own budget."),
		"rate_limit":      limit,
		"descriptors":     list("For the next entry.", schema{"$ref": "#/definitions/descriptor"}),
		"shadow_mode":     flagged("Counts, but always answers OK."),
		"quota_mode":      flagged("Denies only together with all other quota rules of the request."),
		"detailed_metric": flagged("Statistics are counted by the request's values."),
		"value_to_metric": flagged("Statistics are counted by the request's value at this level."),
		"share_threshold": flagged("With '*' in value: all values that match share one budget."),
		"metadata":        described(schema{"type": "object"}, "For the dynamic metadata of requests that pass."),
	}), "key")
	file := object("The rules of one domain.", withInherited(schema{
		"domain":      described(schema{"type": "string", "minLength": 1}, "The domain, as Envoy's filter names it."),
		"descriptors": list("The rules.", schema{"$ref": "#/definitions/descriptor"}),
	}), "domain")
	file["$schema"], file["$id"], file["title"] = "http://json-schema.org/draft-07/schema#", SchemaID, "Sluice rules"
	file["definitions"] = schema{"descriptor": descriptor, "coordination": coordinationSchema()}
	out, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		panic("a schema of maps and texts is not JSON: " + err.Error())
	}
	return append(out, '\n')
}

func withInherited(properties schema) schema {
	properties["algorithm"] = described(schema{"enum": ratelimit.RateAlgorithms()},
		"How tokens come back; inherited by descriptors below.")
	properties["burst"] = whole(1, "For token_bucket: what a full bucket holds. Default: requests_per_unit.")
	properties["overrides"] = flagged("false: limits are not overridden at run time; inherited by descriptors below.")
	properties["max_override"] = described(schema{"type": "integer", "minimum": 1, "maximum": ratelimit.MaxLimit},
		"Beside rate_limit: the most that an override may set, in tokens for each unit; 10^12 unless said. "+
			"With requests_per_unit: 0 it is needed. Inherited by descriptors below.")
	properties["hold"] = holdSchema()
	properties["coordination"] = schema{"$ref": "#/definitions/coordination"}
	return properties
}

func holdSchema() schema {
	about := "What a request reserves until its cost is known; inherited by descriptors below, as a whole."
	return object(about, schema{
		"amount": whole(1, "So many tokens."),
		"from":   described(schema{"const": "request"}, "The request's hits_addend."),
		"learned": described(schema{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
			"This quantile of the last costs."),
		"max": whole(1, "Most that is held. With learned it is needed, and held before costs are known."),
		"ttl": described(schema{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`},
			"How long after the request it can be settled, 1s to 24h; 10m unless said."),
		"on_unknown": described(schema{"enum": ratelimit.OnUnknowns},
			"What a request costs whose end comes without a cost."),
		"on": described(schema{
			"type": "array", "minItems": 1, "maxItems": ratelimit.MostHoldOn,
			"items": schema{"type": "integer", "minimum": 0},
		}, "Hits of the calls that hold, without an id: all other calls settle."),
	})
}

func coordinationSchema() schema {
	duration := func(about string) schema {
		return described(schema{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}, about)
	}
	share := func(about string) schema {
		return described(schema{"anyOf": []schema{
			{"type": "integer", "minimum": 0, "maximum": math.MaxUint32},
			{"type": "string", "pattern": `^([0-9]+|[0-9]+(\.[0-9]{1,4})?%)$`},
		}}, about)
	}
	size := described(schema{"anyOf": []schema{{"const": "auto"}, whole(1, "")}},
		"Tokens that a node asks for at once; auto: by its demand.")
	ttl := described(schema{"anyOf": []schema{{"const": "auto"}, duration("")}},
		"How long a lease may be spent from, 100ms to 1h.")
	return object("How a fleet shares the budget; inherited by descriptors below, field by field.", schema{
		"mode": described(schema{"enum": ratelimit.ModeNames()}, modePromises()),
		"lease": object("How tokens are leased.", schema{
			"size": size, "ttl": ttl, "reserve": share("Of the limit (0.5%) or in tokens, up to a tenth of it: what " +
				"the ledger does not grant, so that nodes can admit first requests without waiting; 0: nothing."),
		}),
		"reclaim":      described(schema{"enum": ratelimit.Reclaims}, "What becomes of a silent node's tokens."),
		"drift_budget": share("For approx: over-admission allowed to the fleet, of the limit (1%) or in tokens."),
		"max_nodes": described(schema{"type": "integer", "minimum": 1, "maximum": ratelimit.MaxMaxNodes},
			"Nodes of the fleet."),
		"low_watermark": share("For approx: below which a node waits for fresh answers."),
		"check_timeout": duration("For approx: for how long it waits, up to 1s."),
		"store_deadline": duration("How long a decision waits for the store or a key's owner, 1ms to 1s; 15ms " +
			"unless said."),
		"on_store_failure": described(schema{"enum": ratelimit.FailurePolicies},
			"What decides while the store does not answer."),
		"local_cap": whole(0, "For on_store_failure: local: tokens a node; 0: the limit divided by the "+
			"nodes last seen alive, or by max_nodes if their number is unknown."),
		"on_deny": described(schema{"enum": ratelimit.OnDenies}, "What a denied request takes."),
		"debt": described(schema{"enum": ratelimit.Debts},
			"For fixed_window: what becomes of charges beyond the limit when the window ends."),
		"audit": flagged("Keep a record of every grant, return and refusal."),
	})
}

// modePromises are the sentences of all modes.
func modePromises() string {
	all := make([]string, 0, 4)
	for i, name := range ratelimit.ModeNames() {
		all = append(all, name+" "+ratelimit.Mode(i).Spec().Promise)
	}
	return strings.Join(all, "; ") + "."
}

func object(about string, properties schema, required ...string) schema {
	s := described(schema{"type": "object", "properties": properties, "additionalProperties": false}, about)
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func list(about string, of schema) schema {
	return described(schema{"type": "array", "items": of}, about)
}

func text(about string) schema {
	return described(schema{"type": []string{"string", "number", "boolean", "null"}}, about) // as YAML reads 17 and yes
}

func flagged(about string) schema { return described(schema{"type": "boolean"}, about) }

func whole(least int, about string) schema {
	return described(schema{"type": "integer", "minimum": least, "maximum": uint32(math.MaxUint32)}, about)
}

func described(s schema, about string) schema {
	if about != "" {
		s["description"] = about
	}
	return s
}

// unitPattern matches the names of units in any case.
func unitPattern() string {
	var b strings.Builder
	for i, name := range ratelimit.UnitNames() {
		if i > 0 {
			b.WriteByte('|')
		}
		for _, c := range name {
			b.WriteString("[" + string(c) + strings.ToUpper(string(c)) + "]")
		}
	}
	return "^(" + b.String() + ")$"
}
