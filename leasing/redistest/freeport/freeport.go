// Package freeport finds loopback ports for servers that tests and benchmarks start.
//
// Guarantee: a port stays free for its server, also while the server is ended and started again. Ports are below
// those that the system gives to outgoing connections (/proc/sys/net/ipv4/ip_local_port_range, from 32768 on). A
// foreign connection on such a port would keep a restarted server from listening.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// firstPort and portCount leave room for ClusterBus above each port and below 32768.
const firstPort, portCount = 10_000, 12_000

// ClusterBus is the distance of a Redis Cluster's bus port above the server's own port.
const ClusterBus = 10_000

// next starts at another port in each process, so that two rarely try the same ports.
var next = func() *atomic.Uint64 {
	n := &atomic.Uint64{}
	n.Store(rand.Uint64N(portCount))
	return n
}()

// Find returns n free ports. The ports at the offsets above them are free, too. In this process a port is not
// returned again until all others have been.
func Find(n int, offsets ...int) ([]string, error) {
	ports := make([]string, 0, n)
	for range portCount {
		port := firstPort + int(next.Add(1)%portCount)
		if !free(port, offsets) {
			continue
		}
		ports = append(ports, strconv.Itoa(port))
		if len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("looking for %d free ports from %d on: there are none", n, firstPort)
}

func free(port int, offsets []int) bool {
	for _, offset := range append([]int{0}, offsets...) {
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port+offset))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
