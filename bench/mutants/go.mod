module github.com/sluice-gate/sluice/bench/mutants

go 1.26.0

require (
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/sluice-gate/sluice v0.0.0
	golang.org/x/sync v0.24.0
)

replace github.com/sluice-gate/sluice => ../..
