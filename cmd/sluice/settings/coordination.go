package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Coordination is the fields of a coordination block that belong to a fleet more than to a rule. All others are in
// rules, at the root of a file for all of its rules. Empty means the default, which the help states. They are texts, so
// that one parser reads flags and rules (ratelimit.Coordination.Set).
type Coordination struct {
	Mode           string `env:"COORDINATION_MODE" name:"coordination-mode" placeholder:"leasing" help:"Mode of rules that set none: ${modes}. Default: leasing."`
	MaxNodes       string `env:"COORDINATION_MAX_NODES" name:"coordination-max-nodes" placeholder:"10" help:"max_nodes of rules that set none: the maximum number of nodes at one time. Include the extra nodes of a rolling restart. Default: 10."`
	OnStoreFailure string `env:"COORDINATION_ON_STORE_FAILURE" name:"coordination-on-store-failure" placeholder:"local" help:"on_store_failure of rules that set none: local, open or closed. Default: local."`
}

// Default is the coordination of rules that do not say another.
func (f *Coordination) Default() (ratelimit.Coordination, error) {
	return CoordinationOf(map[string]string{
		"mode": f.Mode, "max_nodes": f.MaxNodes, "on_store_failure": f.OnStoreFailure,
	}, func(field string) string { return "COORDINATION_" + strings.ToUpper(field) })
}

// CoordinationOf is the default with some fields changed; name is what an error calls a field. It sets fields in the
// order of their names, so that errors have the same order each time.
func CoordinationOf(fields map[string]string, name func(string) string) (ratelimit.Coordination, error) {
	c := ratelimit.DefaultCoordination()
	var errs []error
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if fields[field] == "" {
			continue
		}
		if err := c.Set(field, fields[field]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name(field), err))
		}
	}
	for _, err := range c.Validate() {
		errs = append(errs, fmt.Errorf("coordination: %w", err))
	}
	return c, errors.Join(errs...)
}
