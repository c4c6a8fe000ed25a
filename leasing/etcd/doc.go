// Package etcd keeps accounts in etcd 3.6 or later, as records of [account.CAS].
//
// Guarantee: a change that Write reports has been committed by a majority of etcd's members, and is on their disks.
// It survives the crash of each of them, and a failover: the life of the data stays the same. Two events start
// another life: another cluster ID, and data without the last write that etcd reported to this process (life.go). So
// a node that runs through the restore of an older copy finds the loss at its next connection, and the ledger learns.
//
// Its limit is time: etcd has no clock. The time of a snapshot is this node's, taken before its request, and in one
// process it never goes back. The clocks of nodes divide time into windows, so keep them together (NTP, chrony). A
// node that is ahead of the others by d has these effects:
//
//   - A fixed window has no excess: each has its account, which grants its limit once.
//   - The node begins to spend the next window's account d too early.
//   - A sliding window counts too little of the previous one, by d, and a bucket gains the refill of d, once,
//     with d below a second.
//   - A lease of a bucket, or a node's registration, counts as over d too early: usage until then is excess.
//   - A young epoch ends d early. It takes two seconds, so keep d well below that.
//   - A record may be deleted early if d is more than ten minutes (lease.go).
//
// Records have no common clock: one node that is ahead by a year would move the windows of all.
//
// A message costs two round trips: a linearizable read of all its accounts, and a transaction of up to 63 of them
// that etcd writes to disk. Etcd keeps overwritten data until a compaction. Drop compacts data older than five
// minutes, unless the URL has compact=false, for a cluster whose operator compacts.
//
// All keys begin with sluice/ :
//
//	sluice/life            names the life of the data
//	sluice/records/NAME    an account, or another record
//	sluice/nodes/PREFIX/   reports of nodes
//	sluice/recalls/NODE    recalls of a node
//
// It cannot detect keys that other programs change, members that run with --unsafe-no-fsync, and two clusters that
// both continue from one snapshot, with some nodes at each.
package etcd
