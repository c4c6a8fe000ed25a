package approx

import (
	"testing"

	"github.com/sluice-gate/sluice/leasing/ledgertest/specpage"
)

// The specification's numbers of seats are the code's.
func TestPageConstants(t *testing.T) {
	specpage.Read(t).Constants([]string{"approx"}, map[string][]string{
		"approx.SeatTTL": {specpage.Duration(SeatTTL)},
		"approx.margin":  {specpage.Duration(margin)},
	})
}
