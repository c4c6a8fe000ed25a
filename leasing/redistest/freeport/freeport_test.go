package freeport

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// A server that ends and starts again finds its port free, whatever connections others open in between.
func TestFoundPortsAreNobodysConnections(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Skip("this system does not say which ports connections get: ", err)
	}
	least, err := strconv.Atoi(strings.Fields(string(text))[0])
	if err != nil {
		t.Fatal(err)
	}
	if top := firstPort + portCount - 1 + ClusterBus; top >= least {
		t.Errorf("ports up to %d are found or needed beside them; connections get theirs from %d on", top, least)
	}
}

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
