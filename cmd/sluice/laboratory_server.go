//go:build server

package main

// laboratory is empty in a binary that only serves, checks and explains.
type laboratory struct{}
