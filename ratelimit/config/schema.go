// The JSON Schema of rule files, which `sluice check --schema` prints. Bounds and names of values come from the
// code, and a test compares the fields with those of fields.go.

package config

import (
	"encoding/json"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// schema is a JSON Schema, or a part of one.
type schema = map[string]any

// SchemaID is where the schema of rule files is published.
const SchemaID = "https://raw.githubusercontent.com/sluice-gate/sluice/main/docs/reference/rules.schema.json"

// Schema returns the JSON Schema (draft 7) of rule files, for editors. It has every field of rule
// files, and no other. It cannot check fields against each other, or several files. Where YAML 1.1
// allows several forms of a flag or a number, the schema has the usual one.
func Schema() []byte {
	limit := objectSchema("The limit.", schema{
		"requests_per_unit": wholeSchema(0, ratelimit.MaxLimit,
			"Tokens in each unit. 0, or no value, refuses every request."),
		"unit": described(schema{
			"anyOf": []schema{{"enum": ratelimit.UnitNames()}, {"type": "string", "pattern": unitPattern()}},
		}, "The period, in upper or lower case. A month has 30 days, a year 365."),
		"unit_multiplier": wholeSchema(1, ratelimit.MaxLimit, "Units in a period (default 1)."),
		"concurrency": wholeSchema(1, ratelimit.MaxConcurrency,
			"Maximum requests in flight, instead of requests_per_unit and unit. Envoy must return holds."),
		"hold_ttl": durationSchema(
			"With concurrency: maximum time that a request without a reported end counts, 1s to 24h (default 10m)."),
		"billing": objectSchema("With unit: month and fixed_window: months begin on a day, at local midnight.", schema{
			"day": wholeSchema(1, 31,
				"Day of the month, or the last day of shorter months (default 1)."),
			"time_zone": textSchema("IANA name, such as America/New_York (default UTC)."),
		}),
		"unlimited": flagSchema("No limit. Requires that unit is not set."),
		"name":      textSchema("Name in answers. Other rules can replace rules of this name."),
		"replaces": listSchema("Rules that do not count when this one matches in the same request.",
			objectSchema("", schema{"name": textSchema("rate_limit.name of the other rule.")}, "name")),
	})
	descriptor := objectSchema("Match for one entry of a request's descriptor.", withInherited(schema{
		"key": textSchema("The entry's key."),
		"value": textSchema("The entry's value, or a pattern with '*'. Default: every value, each with a " +
			"budget."),
		"rate_limit":      limit,
		"descriptors":     listSchema("Rules for the next entry.", schema{"$ref": "#/definitions/descriptor"}),
		"shadow_mode":     flagSchema("Count requests, but answer OK."),
		"quota_mode":      flagSchema("Deny only if all other quota rules of the request deny, too."),
		"detailed_metric": flagSchema("Count statistics by the request's values."),
		"value_to_metric": flagSchema("Count statistics by the request's value at this level."),
		"share_threshold": flagSchema("With '*' in value: share one budget among all values that match."),
		"metadata":        described(schema{"type": "object"}, "Dynamic metadata of admitted requests."),
	}), "key")
	file := objectSchema("The rules of one domain.", withInherited(schema{
		"domain":      described(schema{"type": "string", "minLength": 1}, "The domain, as Envoy's filter names it."),
		"descriptors": listSchema("The rules.", schema{"$ref": "#/definitions/descriptor"}),
	}), "domain")
	file["$schema"] = "http://json-schema.org/draft-07/schema#"
	file["$id"] = SchemaID
	file["title"] = "Sluice rules"
	file["definitions"] = schema{"descriptor": descriptor, "coordination": coordinationSchema()}
	// Descriptors and coordination are definitions, because they stand within themselves, or at many places.
	out, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		panic("a schema of maps and texts is not JSON: " + err.Error())
	}
	return append(out, '\n')
}

// withInherited adds the fields that can stand at the root and in any descriptor.
func withInherited(properties schema) schema {
	properties["algorithm"] = enumSchema(ratelimit.RateAlgorithms(),
		"How tokens return. Descriptors below inherit it.")
	properties["burst"] = wholeSchema(1, ratelimit.MaxLimit,
		"For token_bucket: tokens of a full bucket (default requests_per_unit).")
	properties["max_override"] = wholeSchema(0, ratelimit.MaxLimit,
		"Next to rate_limit: maximum of an override, in tokens for each unit (default 10^12). "+
			"0: no overrides at run time. Required with requests_per_unit: 0. Descriptors below inherit it.")
	properties["hold"] = holdSchema()
	properties["coordination"] = schema{"$ref": "#/definitions/coordination"}
	return properties
}

// holdSchema is of a hold block. That a hold has exactly one of amount, from and learned, only a check says.
func holdSchema() schema {
	about := "Tokens that a request reserves until its cost arrives. Descriptors below inherit it as a whole."
	return objectSchema(about, schema{
		"amount": wholeSchema(1, ratelimit.MaxLimit, "So many tokens."),
		"from":   described(schema{"const": "request"}, "The request's hits_addend."),
		"learned": described(schema{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
			"Quantile of the last costs to hold."),
		"max": wholeSchema(1, ratelimit.MaxLimit,
			"Maximum of a hold. Required with learned, and held until the first costs arrive."),
		"ttl": durationSchema(
			"Maximum time from request to settlement, 1s to 24h (default 10m)."),
		"on_unknown": enumSchema(ratelimit.OnUnknowns[:],
			"Cost of a request that ends without a reported cost."),
		"on": described(schema{
			"type": "array", "minItems": 1, "maxItems": ratelimit.MostHoldOn,
			"items": schema{"type": "integer", "minimum": 0},
		}, "Hits of calls that hold, without an id. All other calls settle."),
	})
}

// coordinationSchema is of a coordination block, which stands once in the definitions: it can be in any descriptor.
func coordinationSchema() schema {
	share := func(about string) schema {
		return described(schema{"anyOf": []schema{
			wholeSchema(0, ratelimit.MaxLimit, ""),
			{"type": "string", "pattern": `^([0-9]+|[0-9]+(\.[0-9]{1,4})?%)$`},
		}}, about)
	}
	return objectSchema("How a fleet shares the budget. Descriptors below inherit each field.", schema{
		"mode": enumSchema(ratelimit.ModeNames(), modePromises()),
		"lease": objectSchema("How tokens are leased.", schema{
			"size": described(schema{"anyOf": []schema{{"const": "auto"}, wholeSchema(1, ratelimit.MaxLimit, "")}},
				"Tokens of a claim. auto: by demand."),
		}),
		"reclaim":      enumSchema(ratelimit.Reclaims[:], "Use of a silent node's tokens."),
		"drift_budget": share("For approx: maximum over-admission of the fleet, part of the limit (1%) or tokens."),
		"max_nodes":    wholeSchema(1, ratelimit.MaxMaxNodes, "Maximum nodes of the fleet."),
		"check_timeout": durationSchema("For approx: maximum wait for the store while at most a fifth of the limit " +
			"is left, up to 1s."),
		"store_deadline": durationSchema("Maximum wait of a decision for the store or a key's owner, 1ms to 1s " +
			"(default 15ms)."),
		"on_store_failure": enumSchema(ratelimit.FailurePolicies[:],
			"Decision while the store does not answer."),
		"on_deny": enumSchema(ratelimit.OnDenies[:], "Charge of a denied request (default "+
			"charge for fixed_window, else refund)."),
		"audit": flagSchema("Keep a record of every grant, return and refusal."),
	})
}

// modePromises has the sentences of all modes.
func modePromises() string {
	all := make([]string, 0, 4)
	for i, name := range ratelimit.ModeNames() {
		all = append(all, name+" "+ratelimit.Mode(i).Spec().Promise)
	}
	return strings.Join(all, "; ") + "."
}

// objectSchema is a map with these fields and no others.
func objectSchema(about string, properties schema, required ...string) schema {
	s := described(schema{"type": "object", "properties": properties, "additionalProperties": false}, about)
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func listSchema(about string, of schema) schema {
	return described(schema{"type": "array", "items": of}, about)
}

// textSchema is a text. YAML reads 17 and yes as other types, and rule files may leave out the quotes.
func textSchema(about string) schema {
	return described(schema{"type": []string{"string", "number", "boolean", "null"}}, about)
}

// durationSchema is the form of time.ParseDuration, such as 1m30s. Bounds are checked on load only.
func durationSchema(about string) schema {
	return described(schema{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}, about)
}

func flagSchema(about string) schema { return described(schema{"type": "boolean"}, about) }

func wholeSchema(least, most ratelimit.Tokens, about string) schema {
	return described(schema{"type": "integer", "minimum": least, "maximum": most}, about)
}

func enumSchema(names []string, about string) schema {
	return described(schema{"enum": names}, about)
}

// described adds what an editor shows.
func described(s schema, about string) schema {
	if about != "" {
		s["description"] = about
	}
	return s
}

// unitPattern matches the names of units in any case, letter by letter: JSON Schema has no flag for that.
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
