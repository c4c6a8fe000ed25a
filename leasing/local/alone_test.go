package local

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Nodes that share nothing admit the limit each: what is declared for each further node.
func TestNodesAlone(t *testing.T) {
	const nodes = 3
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 20})
	admitted := tokens(0)
	for range nodes {
		admitted += tokens(admit(New(10, 1, testWall), 1, rule, 50))
	}
	declared := rule.Declare(nodes, ratelimit.OwnMemory).Over
	if over := admitted - rule.Limit.Requests; over != declared.Tokens || over != (nodes-1)*declared.EachNode {
		t.Errorf("%d over, declared: %+v", over, declared)
	}
}
