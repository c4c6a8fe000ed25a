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
	coins := make(chan int, 1)
	coins <- 2
	p.Await(coins)
	if got := p.Take(9); got != 2 {
		t.Errorf("took %d of 2 coins that came", got)
	}
}
