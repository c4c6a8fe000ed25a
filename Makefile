# make help lists the targets. Tools are pinned in tools.mod, libraries in go.mod.
SHELL := /bin/bash
GO ?= go
TOOL := $(GO) tool -modfile=tools.mod
FUZZTIME ?= 5s
BIN := .cache/sluice

.PHONY: help run test check bench bench-core bench-cost bench-keys fuzz format

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## serve the built-in example
	$(GO) run ./cmd/sluice serve

test: ## all tests, and each fuzz target for FUZZTIME
	$(GO) vet ./...
	$(GO) test -timeout 10m ./...
	$(MAKE) fuzz

check: ## formatting, vet and linters
	@test -z "$$($(TOOL) gofumpt -l .)" || { echo "not formatted (make format):"; $(TOOL) gofumpt -l .; exit 1; }
	$(GO) mod verify
	$(TOOL) golangci-lint run ./...

format: ## format the code
	$(TOOL) gofumpt -w .

fuzz: ## run each fuzz target for FUZZTIME
	$(GO) test -run '^$$' -fuzz '^FuzzParse$$' -fuzztime $(FUZZTIME) ./ratelimit/config
	$(GO) test -run '^$$' -fuzz '^FuzzPattern$$' -fuzztime $(FUZZTIME) ./ratelimit/config
	$(GO) test -run '^$$' -fuzz '^FuzzAnswer$$' -fuzztime $(FUZZTIME) ./ratelimit/service

bench: bench-core bench-cost ## what a decision costs, in the core and as a whole

bench-core: ## match and take, by number of keys, beside one cold read of memory
	$(GO) test -run '^$$' -bench . -benchtime 2s ./bench

bench-cost: $(BIN) ## server CPU a call, against an empty gRPC server
	$(BIN) bench cost

bench-keys: $(BIN) ## memory of one process under 5,000,000 distinct keys
	$(BIN) bench keys

.PHONY: $(BIN)
$(BIN):
	@mkdir -p .cache
	$(GO) build -o $@ ./cmd/sluice
