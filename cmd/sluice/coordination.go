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
	Mode           string `env:"COORDINATION_MODE" name:"coordination-mode" placeholder:"leasing" help:"Mode: leasing, routing or approx."`
	LeaseSize      string `env:"COORDINATION_LEASE_SIZE" name:"coordination-lease-size" placeholder:"auto" help:"Size of a lease in tokens, or auto for measured demand."`
	LeaseMin       string `env:"COORDINATION_LEASE_MIN" name:"coordination-lease-min" placeholder:"0" help:"Minimum size of a lease in tokens."`
	LeaseMax       string `env:"COORDINATION_LEASE_MAX" name:"coordination-lease-max" placeholder:"0" help:"Maximum size of a lease in tokens (0: none)."`
	LeaseTTL       string `env:"COORDINATION_LEASE_TTL" name:"coordination-lease-ttl" placeholder:"auto" help:"Lifetime of an eager lease, 100ms to 1h. auto: 10s."`
	LeaseReserve   string `env:"COORDINATION_LEASE_RESERVE" name:"coordination-lease-reserve" placeholder:"0" help:"Part of the limit, or tokens, for first requests of a key, which then do not wait for the store."`
	Reclaim        string `env:"COORDINATION_RECLAIM" name:"coordination-reclaim" placeholder:"safe" help:"Tokens of a silent node: safe keeps them charged until the window ends, eager frees them when the lease expires."`
	DriftBudget    string `env:"COORDINATION_DRIFT_BUDGET" name:"coordination-drift-budget" placeholder:"1%" help:"Allowed over-admission of mode approx, in percent of the limit or tokens."`
	MaxNodes       string `env:"COORDINATION_MAX_NODES" name:"coordination-max-nodes" placeholder:"10" help:"Maximum of nodes, which share the drift budget and the reserve."`
	LowWatermark   string `env:"COORDINATION_LOW_WATERMARK" name:"coordination-low-watermark" placeholder:"20%" help:"Mode approx: remainder below which requests wait for the store."`
	CheckTimeout   string `env:"COORDINATION_CHECK_TIMEOUT" name:"coordination-check-timeout" placeholder:"2ms" help:"Mode approx: maximum of that wait."`
	StoreDeadline  string `env:"COORDINATION_STORE_DEADLINE" name:"coordination-store-deadline" placeholder:"15ms" help:"Maximum wait of a decision for the store, 1ms to 1s. Then on_store_failure decides. Keep it below the timeout of Envoy's rate limit filter, by default 20ms."`
	SyncInterval   string `env:"COORDINATION_SYNC_INTERVAL" name:"coordination-sync-interval" placeholder:"2s" help:"Mode approx: age up to which a reply of the store counts."`
	OnStoreFailure string `env:"COORDINATION_ON_STORE_FAILURE" name:"coordination-on-store-failure" placeholder:"local" help:"Decision without the store: local, open, closed or cached."`
	LocalCap       string `env:"COORDINATION_LOCAL_CAP" name:"coordination-local-cap" placeholder:"0" help:"Tokens of each node for local (0: limit / max_nodes)."`
	MaxStaleness   string `env:"COORDINATION_MAX_STALENESS" name:"coordination-max-staleness" placeholder:"10s" help:"Maximum use of cached."`
	OnDeny         string `env:"COORDINATION_ON_DENY" name:"coordination-on-deny" placeholder:"charge" help:"Charge of a denied request: charge or refund."`
	Debt           string `env:"COORDINATION_DEBT" name:"coordination-debt" placeholder:"forget" help:"Debt at the end of a fixed window: 'forget' or 'carry'."`
	Audit          string `env:"COORDINATION_AUDIT" name:"coordination-audit" placeholder:"false" help:"Record each grant, return and refusal in the store, for sluice audit."`
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
