// Package check holds what is deployed against the types of those who will read
// it: the Helm chart and the manifests against Kubernetes and the Prometheus
// operator, the compose file against its schema. It also has a library for JSON
// Schemas judge rule files by the one in docs. It is a module of its own, so
// that Sluice does not depend on any of them.
package check
