// Package cli runs the command lines of sluice and sluicelab.
//
// [Run] promises the same of each command. Help and results go to Out. Errors go to Err, after the name of the program.
// The exit code is 0, 1 of a command that failed, or 2 of a wrong command line. A command is a struct of kong whose
// method Run takes [Streams].
package cli
