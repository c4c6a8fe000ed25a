package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// defaultRuntimeRoot is where envoyproxy/ratelimit's image has its rules.
const defaultRuntimeRoot = "/srv/runtime_data/current"

// source is where rules come from. It does not connect to anything yet. The order is that of envoyproxy/ratelimit:
// --config is Sluice's own, then RUNTIME_ROOT, then the place of its image. Without all of them, a built-in example is
// served.
func (s *flags) source(log *slog.Logger) (config.Source, error) {
	if s.ConfigType == configXDS {
		return s.XDS.client(s.caps.Rules, log)
	}
	tree := &config.Tree{IgnoreDotFiles: s.IgnoreDotFiles, Caps: s.caps.Rules, Interval: reloadInterval, Log: log}
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

// rules finds where rules come from, and reads the first. noHolds is why rules may have no holds with an id; nil: they
// may. The first rules may come from three places: the source, the copy of the last good ones, and none at all. With
// none, it fails unless FORCE_START_WITHOUT_INITIAL_CONFIG is set, or a management server will push them.
func (c *serveCmd) rules(coordination ratelimit.Coordination, noHolds error, log *slog.Logger) (source config.Source, store *config.Store, err error) {
	source, err = c.source(log)
	if err != nil {
		return nil, nil, err
	}
	store = config.NewStore(source, config.Options{
		Coordination: coordination, MergeDomains: c.MergeDomains, CalendarMonths: c.CalendarMonths, Caps: c.caps.Rules,
		NoHolds: noHolds, InForce: func(rules *config.Rules) { c.warn(rules, log) },
	}, log)
	// The copy must not be in the directory of rules: it would be read as a file of them.
	if c.LastGood != "" {
		if err := store.KeepLastGood(c.LastGood); err != nil {
			return nil, nil, fmt.Errorf("CONFIG_LAST_GOOD_FILE: %w", err)
		}
	}
	// With a management server, the first load finds nothing yet, which is no fault of the rules.
	err = store.Load()
	if err != nil && c.LastGood != "" {
		err = store.LoadLastGood(err)
		if err != nil {
			log.Warn("no copy of the last good rules is available (CONFIG_LAST_GOOD_FILE)", "error", err)
		}
	}
	if err != nil && !c.ForceStart && c.ConfigType != configXDS { // which may come late
		return nil, nil, fmt.Errorf("%w:\n%w", errFirstRules, err)
	}
	return source, store, nil
}

var errFirstRules = errors.New("the first rules (--config, or RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY) are bad, and FORCE_START_WITHOUT_INITIAL_CONFIG is not set")

// warn names the first rule that has something without an effect at this node. It runs for each set of rules that comes
// into force. A warning names one rule only, because a file may have thousands.
func (c *serveCmd) warn(rules *config.Rules, log *slog.Logger) {
	for what, has := range map[string]func(*ratelimit.Coordination) bool{
		"PEERS is not set: rules of a mode with owners run as leasing":   func(x *ratelimit.Coordination) bool { return c.Ring.Peers == "" && x.Mode.Spec().Owned },
		"audit: true has no effect: there is no store, or no AUDIT_FILE": func(x *ratelimit.Coordination) bool { return x.Audit && (!c.Store.Shared() || c.AuditFile == "") },
	} {
		all := rules.All()
		if i := slices.IndexFunc(all, func(r *ratelimit.Rule) bool { return has(&r.Coordination) }); i >= 0 {
			log.Warn(what, "first", all[i].FullName(), "mode", all[i].Coordination.Mode.String())
		}
	}
}

// watchRules has rules loaded again whenever they change, until ctx is done.
func watchRules(ctx context.Context, store *config.Store, log *slog.Logger) {
	if err := store.Watch(ctx); err != nil {
		log.Error("rules are no longer reloaded", "error", err)
	}
}

// exampleConfig is what serve has without rules of your own.
const exampleConfig = `# sluice's built-in example. Your own: sluice serve --config DIR|FILE
domain: example
descriptors:
  # Each user may do 3 requests an hour; alice 5.
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: user
    value: alice
    rate_limit: {unit: hour, requests_per_unit: 5}
  # A login is tried 1 time a second, in bursts of 3.
  - key: login
    algorithm: token_bucket
    burst: 3
    rate_limit: {unit: second, requests_per_unit: 1}
`

// exampleRequest is a body for /json that the example limits to 3 an hour.
const exampleRequest = `{"domain":"example","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}`
