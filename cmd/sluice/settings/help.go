package settings

import (
	"fmt"
	"slices"

	"github.com/alecthomas/kong"
)

// brief are those that serve --help shows; --help-all shows all.
var brief = []string{
	"--config", "--settings", "CONFIG_TYPE", "CONFIG_GRPC_XDS_SERVER_URL", "CONFIG_LAST_GOOD_FILE",
	"PORT", "GRPC_PORT", "DEBUG_HOST", "DEBUG_PORT", "GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY",
	"ADMIN_TOKEN", "DRAIN_TIME", "SHADOW_MODE", "LIMIT_RESPONSE_HEADERS_ENABLED",
	"COORDINATION_MODE", "COORDINATION_MAX_NODES", "COORDINATION_ON_STORE_FAILURE",
	"STORE_URL", "REDIS_URL", "REDIS_TYPE", "REDIS_AUTH", "REDIS_TLS", "CACHE_KEY_PREFIX",
	"PEERS", "PEER_ADDR", "PEER_SECRET", "MAX_MEMORY", "LOG_LEVEL", "LOG_FORMAT",
}

// Help prints the help of a command, that of serve without the settings that few need. It hides by changing the flags
// of this parser, which prints once and ends.
func Help(options kong.HelpOptions, ctx *kong.Context) error {
	node := ctx.Selected()
	if node == nil || node.Name != "serve" {
		return kong.DefaultHelpPrinter(options, ctx)
	}
	hidden := 0
	for _, flag := range node.Flags {
		if !flag.Hidden && flag.Group != nil && !slices.Contains(brief, nameOf(flag)) {
			flag.Hidden = true
			hidden++
		}
	}
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	_, err := fmt.Fprintf(ctx.Stdout, "\n%d more settings: sluice serve --help-all, or docs/reference/settings.md\n", hidden)
	return err
}

// HelpAll prints the help of a command with all of its settings.
type HelpAll bool

// IgnoreDefault has kong call BeforeReset only if the flag is given.
func (HelpAll) IgnoreDefault() {}

// BeforeReset is called by kong before anything else. So the help is printed even if other settings are wrong. Exit
// ends the command line with code 0.
func (HelpAll) BeforeReset(ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(kong.HelpOptions{Compact: true, FlagsLast: true, ValueFormatter: kong.DefaultHelpValueFormatter}, ctx); err != nil {
		return err
	}
	ctx.Exit(0)
	return nil
}
