package ledger

import (
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

func TestMain(m *testing.M) {
	defer redistest.EndShared()
	m.Run()
}
