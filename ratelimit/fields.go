package ratelimit

import (
	"fmt"
	"strconv"
	"time"
)

// Get is the value of the named field of CoordinationFields, as a text that Set reads. For other names it is
// "".
func (c *Coordination) Get(field string) string {
	switch field {
	case "mode":
		return c.Mode.String()
	case "lease.size":
		if c.Lease.Fixed == 0 {
			return "auto"
		}
		return c.Lease.Fixed.text()
	case "reclaim":
		return c.Reclaim.String()
	case "lease.reserve":
		return c.Lease.Reserve.String()
	case "drift_budget":
		return c.DriftBudget.String()
	case "max_nodes":
		return strconv.Itoa(c.MaxNodes)
	case "check_timeout":
		return durationText(c.CheckTimeout)
	case "store_deadline":
		return durationText(c.Deadline())
	case "on_store_failure":
		return c.OnStoreFailure.String()
	case "on_deny":
		return c.OnDeny.String()
	case "debt":
		return c.Debt.String()
	case "audit":
		return strconv.FormatBool(c.Audit)
	}
	return ""
}

func (t Tokens) text() string { return strconv.FormatInt(int64(t), 10) }

// durationText is a duration without the zeros that time.Duration writes: 1h, not
// 1h0m0s.
func durationText(d time.Duration) string {
	switch {
	case d == 0:
		return "0s"
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
