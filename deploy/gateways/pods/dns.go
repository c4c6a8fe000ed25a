package pods

import (
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// serveNames answers questions for the names of services: with the address of the service, or with those of the ready
// pods of a headless one. There is one question at a time, which takes no time. An unreadable one has no answer, and
// its sender tries again.
func (c *Cluster) serveNames(conn net.PacketConn) {
	question := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(question)
		if err != nil {
			return
		}
		if answer, err := c.answer(question[:n]); err == nil {
			_, _ = conn.WriteTo(answer, from)
		}
	}
}

// answer is the answer to a DNS message with one question. A known name without an address of the asked type, such as
// AAAA, has an empty answer. NXDOMAIN would make resolvers give up the name for all types.
func (c *Cluster) answer(question []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil || len(m.Questions) != 1 {
		return nil, err
	}
	q := m.Questions[0]
	c.mu.Lock()
	found, ok := c.names[strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))]
	c.mu.Unlock()
	m.Response = true
	m.Authoritative = true
	m.RecursionAvailable = true
	m.Additionals = nil
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range found {
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 2},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
			})
		}
	}
	return m.Pack()
}
