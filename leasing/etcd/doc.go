// Package etcd keeps accounts in etcd 3.6 or later, as records of [account.CAS].
//
// Guarantee: a change that Write reports has been committed by a majority of etcd's members, and on their disks. It
// survives the crash of each of them, and a failover: the life of the data stays the same. Two things make it another
// one: another cluster ID, and data without the last write that this process was told of (life.go). So a node that
// outlives the restore of an older copy finds the loss at its next connection, and the ledger learns.
//
// Its limit is time: etcd has no clock. The time of a snapshot is this node's, taken before its request, and in one
// process it never goes back. The clocks of nodes cut the windows, so keep them together (NTP, chrony). This is the
// price where a node is ahead of the others by d:
//
//   - Of a fixed window nothing is over: each has its account, which grants its limit once.
//   - The node begins to spend the next window's account d too early.
//   - A sliding window weighs the window before by d too little, and a bucket refills by what d refills, once.
//   - An eager lease, or one of a bucket, is taken for expired d too early: what its holder spends until then is over.
//   - Learning after a loss ends d early. It takes two seconds, so keep d well below that.
//   - A record may be deleted early if d is more than ten minutes (lease.go).
//
// There is no common clock in a record: one node that is ahead by a year would move the windows of all.
//
// A message costs two round trips: a linearizable read of all its accounts, and a transaction of up to 63 of them that
// etcd writes to disk. Etcd keeps what was overwritten until it is compacted. Drop compacts what is older than five
// minutes, unless the URL says compact=false, for a cluster whose keeper compacts.
//
// All keys begin with sluice/ :
//
//	sluice/life            names the life of the data
//	sluice/records/NAME    an account, or another record
//	sluice/events/PREFIX/  what is on record of audited rules, by time
//	sluice/nodes/PREFIX/   what nodes say of themselves
//	sluice/recalls/NODE    what a node is asked to give back
//
// It does not see: keys that somebody else changes; members that run with --unsafe-no-fsync; and two clusters that both
// go on from one snapshot, with some nodes at each.
package etcd
