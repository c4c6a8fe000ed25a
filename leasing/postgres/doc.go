// Package postgres keeps accounts in PostgreSQL 12 or later, as records of [account.CAS].
//
// Guarantee: a change that Write reports has been committed, as durably as synchronous_commit says: by default, it
// survives a crash of the server, and a failover to a synchronous standby. Where the server may have lost commits, the
// life of its data is another one, and the ledger learns: after a promotion, after a restore, and, where
// synchronous_commit is off, after each start of the server.
//
// A message costs two round trips: one statement reads all of its accounts, and one transaction writes them, with a
// statement for what is new and one for what is changed of each partition. An account is a row. Rows are in partitions
// by the time at which they are over, of ten minutes each, so that what is over goes as a table, and leaves nothing to
// vacuum.
//
// The time of the ledger is the server's when a statement reaches it (statement_timestamp): it is not later than the
// state that the statement reads.
//
// It does not see: rows that somebody else changes or deletes. Do not write to its tables; sluice_events is for you to
// read.
package postgres
