package purse

import "testing"

func TestPurse(t *testing.T) {
	var p Purse
	for range 5 {
		p.Put()
	}
	if got := p.Take(9); got != 3 {
		t.Errorf("took %d of 3 coins", got)
	}
	if got := p.Take(1); got != 0 {
		t.Errorf("took %d coins of an empty purse", got)
	}
}
