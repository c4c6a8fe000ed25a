package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Coordination is the fields of a coordination block that belong to a fleet more than to a rule. All others are
// in rules, at the root of a file for all of its rules. Empty means the default, which the help states.
type Coordination struct {
	Mode           string `env:"COORDINATION_MODE" name:"coordination-mode" placeholder:"leasing" help:"Default mode of rules: ${modes}."`
	MaxNodes       string `env:"COORDINATION_MAX_NODES" name:"coordination-max-nodes" placeholder:"10" help:"Default max_nodes of rules: maximum number of nodes at one time, including extra ones during a rolling restart."`
	OnStoreFailure string `env:"COORDINATION_ON_STORE_FAILURE" name:"coordination-on-store-failure" placeholder:"local" help:"Default on_store_failure of rules: local, open or closed."`
}

// Default is the coordination of rules that do not say another.
func (f *Coordination) Default() (ratelimit.Coordination, error) {
	return CoordinationOf(map[string]string{
		"mode": f.Mode, "max_nodes": f.MaxNodes, "on_store_failure": f.OnStoreFailure,
	}, func(field string) string { return "COORDINATION_" + strings.ToUpper(field) })
}

// CoordinationOf is the default with some fields changed; name is what an error calls a field.
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
