package account

import (
	"os"
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	redistest.EndShared()
	os.Exit(code)
}
