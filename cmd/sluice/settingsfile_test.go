package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
)

// docs/reference/settings.md and the schema of settings files are what the settings make them.
func TestSettingsPage(t *testing.T) {
	for page, flag := range map[string]string{"docs/reference/settings.md": "--markdown", "docs/reference/settings.schema.json": "--schema"} {
		if _, out, errs := runLine("settings", flag); out != read(t, page) {
			t.Errorf("%s is not what sluice settings %s prints (%s): make settings", page, flag, errs)
		}
	}
}

// A file sets what neither a flag nor the environment does, and the command says which of them did.
func TestSettingsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	writeFile(t, file, `# a comment
ports:
  grpc_port: 9001
  debug_port: 9002
  drain_time: 7s
  host: 10.0.0.1
  admin_token: hunter2
store:
  redis_url: redis://user:hunter2@r:6379
log: {log_level: warn}
`)
	t.Setenv("DEBUG_PORT", "9003")
	t.Setenv("RUNTIME_APPDIRECTORY", "")
	code, out, errs := runLine("settings", "--settings", file, "--drain-time=8s", "--json")
	var all []settings.Setting
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 {
		t.Fatalf("%d %v %s", code, err, errs)
	}
	got := map[string]settings.Setting{}
	for _, x := range all {
		got[x.Name] = x
	}
	for name, want := range map[string]settings.Setting{
		"GRPC_PORT":            {Section: "ports", Name: "GRPC_PORT", Value: "9001", From: file + ":3"},
		"DEBUG_PORT":           {Section: "ports", Name: "DEBUG_PORT", Value: "9003", From: "environment"},
		"RUNTIME_APPDIRECTORY": {Section: "rules", Name: "RUNTIME_APPDIRECTORY", From: "environment"},
		"DRAIN_TIME":           {Section: "ports", Name: "DRAIN_TIME", Value: "8s", From: "flag"},
		"HOST":                 {Section: "ports", Name: "HOST", Value: "10.0.0.1", From: file + ":6"},
		"ADMIN_TOKEN":          {Section: "ports", Name: "ADMIN_TOKEN", Value: "(set)", From: file + ":7"},
		"REDIS_URL":            {Section: "store", Name: "REDIS_URL", Value: "redis://user:xxxxx@r:6379", From: file + ":9"},
		"LOG_LEVEL":            {Section: "log", Name: "LOG_LEVEL", Value: "warn", From: file + ":10"},
	} {
		if got[name] != want {
			t.Errorf("%+v, want %+v", got[name], want)
		}
	}
	if strings.Contains(out, "hunter2") {
		t.Error("a secret is printed")
	}
}

// No form of a secret is printed.
func TestSettingsMaskSecrets(t *testing.T) {
	for env, values := range map[string]string{
		"ADMIN_TOKEN": "hunter2", "PEER_SECRET": "hunter2", "REDIS_AUTH": "hunter2", "REDIS_SENTINEL_AUTH": "hunter2",
		"HOLD_KEYS": "hunter2hunter2hunter2", "REDIS_URL": "user:hunter2@r:6379",
		"STORE_URL": "postgres://db/limits?user=u&password=hunter2 postgres://u@db/limits?sslpassword=hunter2 " +
			"redis://:hunter2@a:1,redis://:hunter2@b:1 redis://u:1/hunter2@r:1 password=hunter2", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "token:hunter2",
	} {
		t.Run(env, func(t *testing.T) {
			for value := range strings.FieldsSeq(values) {
				t.Setenv(env, value)
				_, out, errs := runLine("settings")
				if !strings.Contains(out, env) || strings.Contains(out+errs, "hunter2") {
					t.Errorf("of %s it is shown: %s", value, errs)
				}
			}
		})
	}
}

func TestBadSettingsFiles(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"ports: {prot: 1}\n":            `:1: section "ports" has no setting "prot"; did you mean 'port'?`,
		"port: {port: 1}\n":             `:1: there is no section "port"`,
		"\nports: {port: http}\n":       `--port: expected a valid 16 bit uint but got "http"`,
		"ports: [1]\n":                  ":1: this must be a map of names",
		"a":                             ":1: this must be a map of names",
		"store:\n  redis_url: [a, b]\n": ":2: redis_url must be a single value",
		"ports: {port: 1, PORT: 2}\n":   ":1: PORT is set twice",
		"ports: {rlqs: false}\n":        ":1: rlqs is \"false\", and this release does not have it: unset it",
		"store: {grpc_port: 1}\n":       `section "store" has no setting "grpc_port"`,
		"log: {log_level: loud}\n":      "LOG_LEVEL",
		"limits: {max_memory: 1GB}\n":   "MAX_MEMORY",
		"log: {log_level: warn}\n---\nanswers: {shadow_mode: true}\n": ":2: here starts a second document",
		"log: {log_level: warn}\n---\n[":                              "here starts a second document",
		"ports: {port: 1\n":                                           "--settings",
	} {
		file := filepath.Join(dir, "sluice.yaml")
		writeFile(t, file, text)
		if code, _, errs := runLine("settings", "--settings", file); code == 0 || !strings.Contains(errs, want) || len(errs) > 4<<10 {
			t.Errorf("%.40q: %d %.300s, want %s", text, code, errs, want)
		}
	}
	if code, _, errs := runLine("settings", "--settings", filepath.Join(dir, "none")); code == 0 || !strings.Contains(errs, "no such file") {
		t.Errorf("%d %s", code, errs)
	}
}

// A node serves by its file, and refuses one with mistakes before it opens a port.
func TestServeBySettingsFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	writeFile(t, file, "log: {log_format: json}\nanswers: {shadow_mode: true}\n")
	s := serve(t, nil, "--settings", file)
	for range 5 { // the limit is 3
		if got := s.postBody(exampleRequest); got != 200 {
			t.Errorf("in shadow mode: %d", got)
		}
	}
	if !strings.Contains(s.log(), `{"time":`) {
		t.Errorf("the log is no JSON:\n%s", s.log())
	}
	writeFile(t, file, "ports: {prot: 1}\n")
	if out, err := command(nil, "serve", "--settings", file).CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "sluice: --settings "+file+":1: ") {
		t.Errorf("%v %s", err, out)
	}
}

// The help of serve has what matters, and all of it behind --help-all.
func TestHelpIsBrief(t *testing.T) {
	code, brief, _ := runLine("serve", "--help")
	allCode, all, _ := runLine("serve", "--help-all")
	for _, text := range []string{"--config=", "--settings=", "$REDIS_URL)", "$COORDINATION_MODE)", "$LOG_FORMAT)", "more settings: sluice serve --help-all"} {
		if !strings.Contains(brief, text) {
			t.Errorf("no %s in the help", text)
		}
	}
	if n := strings.Count(brief, "($"); code != 0 || allCode != 0 || n < 25 || n > 35 || strings.Contains(brief, "$NEAR_LIMIT_RATIO") || !strings.Contains(all, "$NEAR_LIMIT_RATIO") {
		t.Errorf("%d settings in the help of serve, and %d in all of it (%d, %d)", n, strings.Count(all, "($"), code, allCode)
	}
}

// A setting whose default follows from others is empty until it is set, and has no default on the page.
func TestSettingsShowUnsetBooleans(t *testing.T) {
	if _, page, _ := runLine("settings", "--markdown"); !strings.Contains(page, "| `CONSOLE_REDACT` |  |") {
		t.Error("the page has a default of CONSOLE_REDACT")
	}
	for flag, want := range map[string]string{"--no-runtime-watch-root": "-", "--console-redact=no": "false", "--console-redact": "true"} {
		_, out, errs := runLine("settings", flag)
		_, rest, found := strings.Cut(out, "CONSOLE_REDACT ")
		if value := strings.Fields(rest); !found || value[0] != want {
			t.Errorf("%s: CONSOLE_REDACT is %.20s (%s), want %s", flag, rest, errs, want)
		}
	}
}
