// Package check compares the deployed files with the types of their readers. The Helm chart and the manifests
// must fit Kubernetes and the Prometheus operator, and the compose file its schema. A library for JSON
// Schemas also judges rule files by the schema in docs. It is a module of its own, so that Sluice does not
// depend on any of them.
package check
