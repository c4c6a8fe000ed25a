// Package purse is what the tool tries itself on.
package purse

const most = 3

// Purse holds coins.
type Purse struct{ coins int }

// Put adds a coin if there is room.
func (p *Purse) Put() bool {
	if p.coins < most {
		p.coins++
		return true
	}
	return false
}

// Take takes up to n coins.
func (p *Purse) Take(n int) int {
	n = min(n, p.coins)
	p.coins -= n
	return n
}
