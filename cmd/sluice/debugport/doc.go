// Package debugport has the commands that talk to running nodes: [Explain], [Top], [Admin] and [Limit].
//
// They use a node's debug port (DEBUG_HOST, DEBUG_PORT) as any other program can, and need nothing else of it: no store,
// no rules, no settings. A request takes at most five seconds. An error names the port, and what the node answers. The
// token is sent, and never printed. [Watch] looks at nodes again and again, as top does.
package debugport
