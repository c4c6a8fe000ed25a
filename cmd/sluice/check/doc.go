// Package check is the command that validates rules, and says what they promise.
//
// It reads rules as a server does, with the same code and bounds, and starts nothing. So what it finds is what a server
// would refuse or warn of, at the same place, and what it declares are the bounds of docs/reference/bounds.md. Findings are for
// people, for programs (--json) and for code hosts (--sarif). The exit code is 1 if a server would refuse the rules, or
// if they do the opposite of their purpose.
package check
