package freeport

import (
	"net"
	"strconv"
	"testing"
)

func TestFindLeavesOutWhatIsTaken(t *testing.T) {
	ports, err := Find(3, ClusterBus)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, port := range ports {
		number, err := strconv.Atoi(port)
		if err != nil || seen[port] {
			t.Fatal(ports, err)
		}
		seen[port] = true
		for _, at := range []int{number, number + ClusterBus} {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(at))
			if err != nil {
				t.Fatal(err)
			}
			if free(number, []int{ClusterBus}) {
				t.Errorf("%d counts as free while somebody listens on %d", number, at)
			}
			l.Close()
		}
	}
}
