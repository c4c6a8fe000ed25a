package main

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The subject of the check is a history: requests of clients, their times, and the answers. It is linearizable
// if each operation can have one instant between its call and its return, such that a counter with that order
// gives the same answers. An operation whose answer was lost has no return: it may have happened at any time
// since its call, or not at all.

// counterOp is what a client asked of one key.
type counterOp struct {
	key    string
	cost   int  // 0: a peek
	change bool // of the nodes: whatever they had leased may be out of others' reach
}

// counterAnswer is its answer.
type counterAnswer struct {
	lost      bool
	ok        bool
	remaining int
}

// counterState is a counter of a key's admissions.
//
// Parked tokens are tokens that may be held for requests that have gone: others are refused until they are given back
// or spent on another request. A request that is given up is charged and then taken back, or is charged to a node that
// keeps the tokens for a while. In between others find too little, and afterwards more. It is an upper bound.
type counterState struct {
	spent  int // admitted, or drained by a denial
	parked int
	early  int // answers that the rule's policy gave without the owner or the store
}

// counterModel is a limit with on_deny: charge.
type counterModel struct {
	limit int
	exact bool // limit_remaining is the rest, except parked tokens
	early int  // how many answers may be the policy's
}

// step returns what the counter may be after an operation with that answer; nothing if it cannot answer so.
func (m *counterModel) step(s counterState, op counterOp, a counterAnswer) []counterState {
	switch {
	case op.change:
		s.parked = m.limit
		return []counterState{s}
	case a.lost:
		s.parked = min(m.limit-s.spent, s.parked+op.cost)
		return []counterState{s}
	case op.cost == 0:
		if m.exact && !m.leaves(s, a.remaining) {
			if s.early++; s.early > m.early {
				return nil
			}
		}
		return []counterState{s}
	case a.ok:
		s.spent += op.cost
		if s.spent > m.limit || m.exact && !m.leaves(s, a.remaining) {
			return nil
		}
		s.parked = min(s.parked, m.limit-s.spent)
		return []counterState{s}
	}
	return m.stepDenied(s, op, a)
}

// leaves reports whether the counter may say that so much is left.
func (m *counterModel) leaves(s counterState, remaining int) bool {
	return m.limit-s.spent-s.parked <= remaining && remaining <= m.limit-s.spent
}

// stepDenied drains the rest, except parked tokens.
func (m *counterModel) stepDenied(s counterState, op counterOp, a counterAnswer) []counterState {
	if s.spent+s.parked+op.cost > m.limit && (!m.exact || a.remaining <= s.parked) {
		s.spent = max(s.spent, m.limit-s.parked)
		return []counterState{s}
	}
	if s.early < m.early { // the request may be with its owner all the same
		s.early++
		s.parked = min(m.limit-s.spent, s.parked+op.cost)
		return []counterState{s}
	}
	return nil
}

// counterHistory is what was recorded of all keys.
type counterHistory []porcupine.Operation

const never = math.MaxInt64 // a return that did not happen

// check tells for each key whether its history is linearizable, and returns what is wrong with the first that is not.
func (h counterHistory) check(m counterModel) error {
	model := porcupine.NondeterministicModel{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation { return counterHistory(all).byKey() },
		Init:      func() []any { return []any{counterState{}} },
		Step: func(state, input, output any) []any {
			var next []any
			for _, s := range m.step(state.(counterState), input.(counterOp), output.(counterAnswer)) {
				next = append(next, s)
			}
			return next
		},
	}
	switch porcupine.CheckOperationsTimeout(model.ToModel(), h, 20*time.Second) {
	case porcupine.Illegal:
		for _, ops := range h.byKey() {
			if porcupine.CheckOperationsTimeout(model.ToModel(), ops, 20*time.Second) == porcupine.Illegal {
				return fmt.Errorf("no order of these explains the answers of a limit of %d (%d answers may be the policy's):\n%s", m.limit, m.early, counterHistory(ops))
			}
		}
		return fmt.Errorf("no order explains the answers of a limit of %d", m.limit)
	case porcupine.Unknown:
		return fmt.Errorf("whether %d operations are linearizable was not found out in 20 s", len(h))
	case porcupine.Ok:
	}
	return nil
}

// byKey parts the history; a change of the nodes concerns each key.
func (h counterHistory) byKey() [][]porcupine.Operation {
	var keys []string
	parts := map[string][]porcupine.Operation{}
	for _, op := range h {
		if key := op.Input.(counterOp).key; key != "" {
			if parts[key] == nil {
				keys = append(keys, key)
			}
			parts[key] = append(parts[key], op)
		}
	}
	var all [][]porcupine.Operation
	for _, key := range keys {
		for _, op := range h {
			if op.Input.(counterOp).change {
				parts[key] = append(parts[key], op)
			}
		}
		all = append(all, parts[key])
	}
	return all
}

func (h counterHistory) String() string {
	ops := slices.Clone(h)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	text := ""
	for _, op := range ops {
		in, out := op.Input.(counterOp), op.Output.(counterAnswer)
		what, heard := fmt.Sprintf("asks for %d of %s", in.cost, in.key), "refused"
		if in.cost == 0 {
			what = "peeks at " + in.key
		}
		switch {
		case in.change:
			what, heard = "the nodes change", ""
		case out.lost:
			heard = "no answer"
		case out.ok:
			heard = "OK"
		}
		ended := "..."
		if op.Return != never {
			ended = time.Duration(op.Return).Round(time.Microsecond).String()
		}
		text += fmt.Sprintf("  %v to %s  client %d %s: %s, %d left\n", time.Duration(op.Call).Round(time.Microsecond), ended, op.ClientId, what, heard, out.remaining)
	}
	return text
}

// A checker that cannot fail proves nothing.
func TestLinearCheckerRefuses(t *testing.T) {
	ask := func(client int, call, end int64, cost int, a counterAnswer) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Call: call, Return: end, Input: counterOp{key: "k", cost: cost}, Output: a}
	}
	ok := func(left int) counterAnswer { return counterAnswer{ok: true, remaining: left} }
	refused, lost := counterAnswer{}, counterAnswer{lost: true}
	for _, c := range []struct {
		name  string
		exact bool
		right bool
		ops   counterHistory
	}{
		{"as many as there are", true, true, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 2, ok(0)), ask(0, 4, 5, 1, refused)}},
		{"one over", true, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 2, ok(0)), ask(0, 4, 5, 1, ok(0))}},
		{"one over, leased", false, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 2, ok(0)), ask(0, 4, 5, 1, ok(0))}},
		{"two at once, both the last", true, false, counterHistory{ask(0, 0, 1, 4, ok(1)), ask(1, 2, 9, 1, ok(0)), ask(2, 3, 8, 1, ok(0))}},
		{"refused too early", true, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 1, refused), ask(0, 4, 5, 1, ok(1))}},
		{"refused too early, leased", false, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 1, refused)}},
		{"admitted after a denial has drained", true, false, counterHistory{ask(0, 0, 1, 4, ok(1)), ask(1, 2, 3, 2, refused), ask(0, 4, 5, 1, ok(0))}},
		{"refused for one that was lost", true, true, counterHistory{ask(0, 0, never, 3, lost), ask(1, 2, 3, 3, refused)}},
		{"refused for one that was lost and taken back", true, true, counterHistory{ask(0, 0, never, 3, lost), ask(1, 2, 3, 3, refused), ask(1, 4, 5, 3, ok(0))}},
		{"one over, and one that was lost", true, false, counterHistory{ask(0, 0, never, 3, lost), ask(1, 2, 3, 3, ok(2)), ask(1, 4, 5, 3, ok(2))}},
		{"refused while one that was lost is parked", false, true, counterHistory{ask(0, 0, never, 3, lost), ask(1, 2, 3, 3, refused), ask(1, 4, 5, 3, ok(2))}},
		{"lost, and counted for more than it asked", true, false, counterHistory{ask(0, 0, never, 1, lost), ask(1, 2, 3, 3, refused)}},
		{"a peek that forgets", true, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 0, ok(5))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.ops.check(counterModel{limit: 5, exact: c.exact}); (err == nil) != c.right {
				t.Errorf("found: %v", err)
			}
		})
	}
}
