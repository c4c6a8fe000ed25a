package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/config"
)

// ruleBoundFlags are the most that rules may be, and how often they may change. The
// defaults are config.DefaultBounds.
type ruleBoundFlags struct {
	FileBytes int           `env:"CONFIG_MAX_FILE_BYTES" name:"config-max-file-bytes" default:"8388608" help:"Most bytes of one file of rules."`
	Bytes     int           `env:"CONFIG_MAX_BYTES" name:"config-max-bytes" default:"16777216" help:"Most bytes of all files."`
	Files     int           `env:"CONFIG_MAX_FILES" name:"config-max-files" default:"1000" help:"Most files, and as many directories; resources of a push."`
	Tokens    int           `env:"CONFIG_MAX_TOKENS" name:"config-max-tokens" default:"250000" help:"Most tokens of YAML in all files, about six a rule: a load takes up to 1 KB of memory for each."`
	Rules     int           `env:"CONFIG_MAX_RULES" name:"config-max-rules" default:"50000" help:"Most descriptors in all files."`
	Interval  time.Duration `env:"CONFIG_RELOAD_INTERVAL" name:"config-reload-interval" default:"200ms" help:"Least time between two loads of rules; changes and pushes that come faster share one, the last counts."`
	LastGood  string        `env:"CONFIG_LAST_GOOD_FILE" name:"config-last-good-file" placeholder:"FILE" help:"Keep a copy of the last good rules in FILE, and start with it when the rules are bad or not there. One for each node, not below the rules."`
}

func (f *ruleBoundFlags) bounds() config.Bounds {
	return config.Bounds{FileBytes: f.FileBytes, TotalBytes: f.Bytes, Files: f.Files, Tokens: f.Tokens, Rules: f.Rules}
}

// maxBound keeps sums of bounds far from overflow.
const maxBound = 1 << 30

func (f *ruleBoundFlags) validate() error {
	var errs []error
	for _, s := range []struct {
		name string
		n    int
	}{
		{"CONFIG_MAX_FILE_BYTES", f.FileBytes},
		{"CONFIG_MAX_BYTES", f.Bytes},
		{"CONFIG_MAX_FILES", f.Files},
		{"CONFIG_MAX_TOKENS", f.Tokens},
		{"CONFIG_MAX_RULES", f.Rules},
	} {
		if s.n < 1 || s.n > maxBound {
			errs = append(errs, fmt.Errorf("%s is %d, must be between 1 and %d", s.name, s.n, maxBound))
		}
	}
	if f.Interval < time.Millisecond || f.Interval > time.Hour {
		errs = append(errs, fmt.Errorf("CONFIG_RELOAD_INTERVAL is %v, must be between 1ms and 1h", f.Interval))
	}
	return errors.Join(errs...)
}
