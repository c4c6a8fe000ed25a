// Package record has both ends of the record of audited rules. [To] writes a node's part of it to a file (AUDIT_FILE).
// [Command] replays such files.
//
// The file has each event before the node spends what the event grants, so that usage is never beyond the record. It
// has at most 64 MB, and as much in the file before. A record with a gap is reported, and the replay fails if a window
// exceeds the bound that its rule declares.
package record
