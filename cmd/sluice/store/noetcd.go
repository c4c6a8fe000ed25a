//go:build noetcd

package store

var etcdScheme []scheme
