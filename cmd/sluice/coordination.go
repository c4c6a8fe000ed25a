package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// coordinationFlags are the fields of a coordination block as flags. Empty
// means the default, which the help states.
type coordinationFlags struct {
	Mode           string `env:"COORDINATION_MODE" name:"coordination-mode" placeholder:"leasing" help:"leasing, routing or approx."`
	LeaseSize      string `env:"COORDINATION_LEASE_SIZE" name:"coordination-lease-size" placeholder:"auto" help:"Tokens, or auto: by measured demand."`
	LeaseMin       string `env:"COORDINATION_LEASE_MIN" name:"coordination-lease-min" placeholder:"0" help:"Tokens."`
	LeaseMax       string `env:"COORDINATION_LEASE_MAX" name:"coordination-lease-max" placeholder:"0" help:"Tokens; 0: no bound."`
	LeaseTTL       string `env:"COORDINATION_LEASE_TTL" name:"coordination-lease-ttl" placeholder:"auto" help:"How long a lease may be spent from. auto: 10s, and longer while there is plenty."`
	LeaseReserve   string `env:"COORDINATION_LEASE_RESERVE" name:"coordination-lease-reserve" placeholder:"0" help:"What is held back of a limit, of it or in tokens, so that first requests of a key need not wait."`
	Reclaim        string `env:"COORDINATION_RECLAIM" name:"coordination-reclaim" placeholder:"safe" help:"safe or eager: a silent node's tokens."`
	DriftBudget    string `env:"COORDINATION_DRIFT_BUDGET" name:"coordination-drift-budget" placeholder:"1%" help:"Over-admission that approx allows, of the limit or in tokens."`
	MaxNodes       string `env:"COORDINATION_MAX_NODES" name:"coordination-max-nodes" placeholder:"10" help:"Nodes that share the drift budget."`
	LowWatermark   string `env:"COORDINATION_LOW_WATERMARK" name:"coordination-low-watermark" placeholder:"20%" help:"Under which approx waits for answers."`
	CheckTimeout   string `env:"COORDINATION_CHECK_TIMEOUT" name:"coordination-check-timeout" placeholder:"2ms" help:"For how long."`
	StoreDeadline  string `env:"COORDINATION_STORE_DEADLINE" name:"coordination-store-deadline" placeholder:"15ms" help:"The longest that a decision waits for the store, 1ms to 1s: then on_store_failure decides. Keep it below the timeout of Envoy's rate limit filter, which is 20ms where nobody says."`
	SyncInterval   string `env:"COORDINATION_SYNC_INTERVAL" name:"coordination-sync-interval" placeholder:"2s" help:"How old a node's knowledge of what is left may be for it to spend its share without waiting."`
	OnStoreFailure string `env:"COORDINATION_ON_STORE_FAILURE" name:"coordination-on-store-failure" placeholder:"local" help:"local, open, closed or cached."`
	LocalCap       string `env:"COORDINATION_LOCAL_CAP" name:"coordination-local-cap" placeholder:"0" help:"Tokens a node for local; 0: limit / max_nodes."`
	MaxStaleness   string `env:"COORDINATION_MAX_STALENESS" name:"coordination-max-staleness" placeholder:"10s" help:"For cached."`
	OnDeny         string `env:"COORDINATION_ON_DENY" name:"coordination-on-deny" placeholder:"charge" help:"charge or refund: what a denied request costs."`
	Debt           string `env:"COORDINATION_DEBT" name:"coordination-debt" placeholder:"forget" help:"forget or carry: charges beyond the limit of a fixed window, when it ends."`
	Audit          string `env:"COORDINATION_AUDIT" name:"coordination-audit" placeholder:"false" help:"true: keep a record of every grant, return and refusal; see sluice audit."`
}

// coordination is the default of all rules.
func (f *coordinationFlags) coordination() (ratelimit.Coordination, error) {
	c := ratelimit.DefaultCoordination()
	texts := []string{
		f.Mode, f.LeaseSize, f.LeaseMin, f.LeaseMax, f.LeaseTTL, f.LeaseReserve, f.Reclaim, f.DriftBudget, f.MaxNodes, f.LowWatermark,
		f.CheckTimeout, f.StoreDeadline, f.SyncInterval, f.OnStoreFailure, f.LocalCap, f.MaxStaleness, f.OnDeny, f.Debt, f.Audit,
	}
	var errs []error
	for i, text := range texts {
		if text == "" {
			continue
		}
		if err := c.Set(ratelimit.CoordinationFields[i], text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", coordinationEnv(ratelimit.CoordinationFields[i]), err))
		}
	}
	for _, err := range c.Validate() {
		errs = append(errs, fmt.Errorf("coordination: %w", err))
	}
	return c, errors.Join(errs...)
}

func coordinationHelp() string { return strings.Join(ratelimit.CoordinationFields, ", ") }

func coordinationEnv(field string) string {
	return "COORDINATION_" + strings.ToUpper(strings.ReplaceAll(field, ".", "_"))
}
