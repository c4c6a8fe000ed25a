//go:build nopostgres

package store

var postgresScheme []scheme
