// Package deploy has Envoy's configurations as texts, for the demo and the benchmark
// that run them, and tests of what is in this folder: the image, the
// Envoy configurations, and the alerts with their pages. What needs other projects'
// types is checked by the module in deploy/check, and what needs a running fleet
// (every query of the dashboards has data) by cmd/sluice.
package deploy
