// Package postgres keeps accounts in PostgreSQL 12 or later, as records of [account.CAS].
//
// Guarantee: a change that Write reports has been committed, as durably as synchronous_commit provides. By default,
// it survives a crash of the server, and a failover to a synchronous standby. If the server may have lost commits,
// the life of its data is another one, and the ledger learns. That is after a promotion, after a restore of another
// server's data, and with synchronous_commit off after each start of the server. A restore in the same place shows in
// the version of the epoch's record, which nodes advance each second.
//
// A message costs two round trips: one statement reads all of its accounts, and one transaction writes them. It has a
// statement for new and one for changed records of each partition. An account is a row. Rows are in partitions of ten
// minutes, by their end, so that ended rows are dropped as a table, without a vacuum.
//
// The time of the ledger is the server's when a statement reaches it (statement_timestamp): it is not later than the
// state that the statement reads.
//
// It cannot detect rows that other programs change or delete. Do not write to its tables.
package postgres
