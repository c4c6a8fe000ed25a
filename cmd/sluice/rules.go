package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// defaultRuntimeRoot is where envoyproxy/ratelimit's image has its rules.
const defaultRuntimeRoot = "/srv/runtime_data/current"

// source is where rules come from. It does not connect to anything yet.
func (s *settings) source(log *slog.Logger) (config.Source, error) {
	if s.ConfigType == configXDS {
		return s.XDS.client(&s.RuleCaps, log)
	}
	tree := &config.Tree{IgnoreDotFiles: s.IgnoreDotFiles, Caps: s.RuleCaps.caps(), Interval: s.RuleCaps.Interval, Log: log}
	runtimeRoot := s.RuntimeRoot
	if runtimeRoot == "" {
		if _, err := os.Stat(defaultRuntimeRoot); err == nil {
			runtimeRoot = defaultRuntimeRoot
		}
	}
	switch {
	case s.Config != "":
		tree.Path = s.Config
	case runtimeRoot != "":
		tree.Path = filepath.Join(runtimeRoot, s.RuntimeSubdir, s.RuntimeAppdir)
		if s.WatchRoot {
			tree.Root = runtimeRoot
		}
	default:
		return config.Static{{Name: "(built-in example)", Data: []byte(exampleConfig)}}, nil
	}
	return tree, nil
}

// rules finds where rules come from, and reads the first.
func (c *serveCmd) rules(coordination ratelimit.Coordination, log *slog.Logger) (source config.Source, store *config.Store, err error) {
	if source, err = c.source(log); err != nil {
		return nil, nil, err
	}
	store = config.NewStore(source, config.Options{
		Coordination: coordination, MergeDomains: c.MergeDomains, CalendarMonths: c.CalendarMonths, Caps: c.RuleCaps.caps(),
	}, log)
	if c.RuleCaps.LastGood != "" {
		if err := store.KeepLastGood(c.RuleCaps.LastGood); err != nil {
			return nil, nil, fmt.Errorf("CONFIG_LAST_GOOD_FILE: %w", err)
		}
	}
	err = store.Load()
	if err != nil && c.RuleCaps.LastGood != "" {
		if err = store.LoadLastGood(err); err != nil {
			log.Warn("no copy of the last good rules is available (CONFIG_LAST_GOOD_FILE)", "error", err)
		}
	}
	if err != nil && !c.ForceStart && c.ConfigType != configXDS { // which may come late
		return nil, nil, fmt.Errorf("the first rules are bad, and FORCE_START_WITHOUT_INITIAL_CONFIG is not set:\n%w", err)
	}
	if c.Ring.Peers == "" {
		warnOfModes(store.Rules(), log)
	}
	return source, store, nil
}

// warnOfModes says which rules ask for owners that nobody named.
func warnOfModes(rules *config.Rules, log *slog.Logger) {
	for _, r := range rules.All() {
		if mode := r.Coordination.Mode; mode.Spec().Owned {
			log.Warn(fmt.Sprintf("PEERS is not set: mode %v runs as leasing", mode), "first", r.Domain+"."+r.Path, "mode", mode.String())
			return
		}
	}
}

// watchRules has rules loaded again whenever they change, until ctx is done.
func watchRules(ctx context.Context, store *config.Store, log *slog.Logger) {
	if err := store.Watch(ctx); err != nil {
		log.Error("rules are no longer reloaded", "error", err)
	}
}

// ruleCapFlags are the most that rules may be, and how often they may change. The
// defaults are config.DefaultCaps.
type ruleCapFlags struct {
	FileBytes int           `env:"CONFIG_MAX_FILE_BYTES" name:"config-max-file-bytes" default:"8388608" help:"Maximum size of a rules file in bytes."`
	Bytes     int           `env:"CONFIG_MAX_BYTES" name:"config-max-bytes" default:"16777216" help:"Maximum size of all rules files in bytes."`
	Files     int           `env:"CONFIG_MAX_FILES" name:"config-max-files" default:"1000" help:"Maximum number of files, of directories, and of resources in a push."`
	Tokens    int           `env:"CONFIG_MAX_TOKENS" name:"config-max-tokens" default:"250000" help:"Maximum number of YAML tokens in all files, about six for a rule. A load takes up to 1 KB for each."`
	Rules     int           `env:"CONFIG_MAX_RULES" name:"config-max-rules" default:"50000" help:"Maximum number of descriptors in all files."`
	Interval  time.Duration `env:"CONFIG_RELOAD_INTERVAL" name:"config-reload-interval" default:"200ms" help:"Minimum time between two loads of rules. Faster changes share one load."`
	LastGood  string        `env:"CONFIG_LAST_GOOD_FILE" name:"config-last-good-file" placeholder:"FILE" help:"File for a copy of the last good rules. The node starts with it if the rules are bad or missing. Use one for each node, outside of the rules directory."`
}

func (f *ruleCapFlags) caps() config.Caps {
	return config.Caps{FileBytes: f.FileBytes, TotalBytes: f.Bytes, Files: f.Files, Tokens: f.Tokens, Rules: f.Rules}
}

// maxBound keeps sums of bounds far from overflow.
const maxBound = 1 << 30

func (f *ruleCapFlags) validate() error {
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
