package ratelimit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// coordinationField is a field as a text: set reads what get says.
type coordinationField struct {
	name string
	get  func(*Coordination) string
	set  func(c *Coordination, text string) error
}

// coordinationFields are in the order of the docs. Rule files and fingerprints go by this table.
var coordinationFields = []coordinationField{
	named("mode", ModeNames(), func(c *Coordination) *Mode { return &c.Mode }),
	{"lease.size", func(c *Coordination) string {
		if c.Lease.Fixed == 0 {
			return "auto"
		}
		return c.Lease.Fixed.text()
	}, func(c *Coordination, text string) error {
		c.Lease.Fixed = 0
		if text == "auto" {
			return nil
		}
		return setTokens(&c.Lease.Fixed, text, MaxLimit)
	}},
	named("reclaim", Reclaims[:], func(c *Coordination) *Reclaim { return &c.Reclaim }),
	share("drift_budget", func(c *Coordination) *Share { return &c.DriftBudget }),
	{
		"max_nodes", func(c *Coordination) string { return strconv.Itoa(c.MaxNodes) },
		func(c *Coordination, text string) error {
			n := Tokens(c.MaxNodes)
			err := setTokens(&n, text, MaxMaxNodes)
			c.MaxNodes = int(n)
			return err
		},
	},
	{
		"check_timeout", func(c *Coordination) string { return DurationText(c.CheckTimeout) },
		func(c *Coordination, text string) error { return setDuration(&c.CheckTimeout, text) },
	},
	{
		"store_deadline", func(c *Coordination) string { return DurationText(c.Deadline()) },
		func(c *Coordination, text string) error {
			err := setDuration(&c.StoreDeadline, text)
			if err == nil && c.StoreDeadline == 0 {
				err = fmt.Errorf("%q is out of range for a store's reply time: use %v to %v", text, MinStoreDeadline,
					MaxStoreDeadline)
			}
			return err
		},
	},
	named("on_store_failure", FailurePolicies[:], func(c *Coordination) *FailurePolicy { return &c.OnStoreFailure }),
	named("on_deny", OnDenies[:], func(c *Coordination) *OnDeny { return &c.OnDeny }),
	{
		"audit", func(c *Coordination) string { return strconv.FormatBool(c.Audit) },
		func(c *Coordination, text string) error {
			c.Audit = strings.EqualFold(text, "true")
			if !c.Audit && !strings.EqualFold(text, "false") {
				return fmt.Errorf("%q is not true or false", text)
			}
			return nil
		},
	},
}

// named is a field with one of several names.
func named[T ~uint8](name string, names []string, of func(*Coordination) *T) coordinationField {
	return coordinationField{
		name, func(c *Coordination) string { return names[*of(c)] },
		func(c *Coordination, text string) error { return SetName(of(c), names, text) },
	}
}

// share is a field that is a part of the limit.
func share(name string, of func(*Coordination) *Share) coordinationField {
	return coordinationField{
		name, func(c *Coordination) string { return of(c).String() },
		func(c *Coordination, text string) (err error) { *of(c), err = ParseShare(text); return err },
	}
}

// CoordinationFields are the names that Set accepts, in the order of the docs.
var CoordinationFields = func() (names []string) {
	for _, f := range coordinationFields {
		names = append(names, f.name)
	}
	return names
}()

// Get is the value of the named field of CoordinationFields, as a text that Set reads. For other names it is
// "".
func (c *Coordination) Get(field string) string {
	if i := slices.Index(CoordinationFields, field); i >= 0 {
		return coordinationFields[i].get(c)
	}
	return ""
}

// Set changes the named field to what text says. It does not look at how
// fields fit together; Validate does.
func (c *Coordination) Set(field, text string) error {
	i := slices.Index(CoordinationFields, field)
	if i < 0 {
		return fmt.Errorf("coordination has no field %q; it has %s", field, strings.Join(CoordinationFields, ", "))
	}
	if err := coordinationFields[i].set(c, text); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

// text is the number, as rule files write it.
func (t Tokens) text() string { return strconv.FormatInt(int64(t), 10) }
