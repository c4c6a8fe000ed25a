// Package deploy has Envoy's configurations as texts, for the demo and the benchmark that run them. Its tests
// check the files of this folder: the image, the Envoy configurations, and the alerts with their pages. The
// module in deploy/check has the checks against other projects' types. cmd/sluice has those that need a
// running fleet: every query of the dashboards has data.
package deploy
