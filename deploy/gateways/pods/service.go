package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// serve gives each service its endpoints, its names, and at its address a proxy to its pods. A headless service has no
// address: its name has the addresses of its ready pods, by which a gateway finds each one. Another has one address,
// with a proxy for each TCP port. Services without a selector, such as kubernetes itself, have endpoints of their own.
// The map of names is replaced as a whole, so deleted services disappear from it.
func (c *Cluster) serve(ctx context.Context) error {
	list, err := c.Kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	names, wanted := map[string][]string{}, map[string]bool{}
	for i := range list.Items {
		s := &list.Items[i]
		if len(s.Spec.Selector) == 0 {
			continue
		}
		slice := c.endpoints(s)
		if err := c.writeSlice(ctx, slice); err != nil {
			return fmt.Errorf("endpoints of %s: %w", s.Name, err)
		}
		name := s.Name + "." + s.Namespace + ".svc.cluster.local"
		if s.Spec.ClusterIP == core.ClusterIPNone {
			for _, e := range slice.Endpoints {
				if *e.Conditions.Ready {
					names[name] = append(names[name], e.Addresses...)
				}
			}
			continue
		}
		names[name] = []string{s.Spec.ClusterIP}
		for _, port := range s.Spec.Ports {
			address := net.JoinHostPort(s.Spec.ClusterIP, strconv.Itoa(int(port.Port)))
			if port.Protocol == core.ProtocolTCP {
				wanted[address] = true
				if err := c.proxy(ctx, address, s.Namespace, s.Name, port.Name); err != nil {
					return err
				}
			}
		}
		if err := c.showService(ctx, s); err != nil {
			return err
		}
	}
	for address, l := range c.proxies {
		if !wanted[address] {
			_ = l.Close()
			delete(c.proxies, address)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = names
	return nil
}

// endpoints returns the slice of a service. Ending pods stay in it, as terminating: gateways may still drain
// connections to them. The order is by address, so that an unchanged slice is equal to the last.
func (c *Cluster) endpoints(s *core.Service) *discovery.EndpointSlice {
	slice := &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name + "-pods", Namespace: s.Namespace,
			Labels:          map[string]string{discovery.LabelServiceName: s.Name, discovery.LabelManagedBy: "pods"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.UID}},
		},
		AddressType: discovery.AddressTypeIPv4,
	}
	node := "node"
	var first *pod
	selector := labels.SelectorFromSet(s.Spec.Selector)
	for _, p := range c.pods {
		if p.Namespace != s.Namespace || !selector.Matches(labels.Set(p.Labels)) || p.finished() {
			continue
		}
		first = p
		serving, ending, ready := p.ready(), p.ending, p.ready() && !p.ending
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{
			Addresses: []string{p.address}, NodeName: &node,
			Conditions: discovery.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &ending},
			TargetRef:  &core.ObjectReference{Kind: "Pod", Name: p.Name, Namespace: p.Namespace, UID: p.UID},
		})
	}
	slices.SortFunc(slice.Endpoints, func(a, b discovery.Endpoint) int { return strings.Compare(a.Addresses[0], b.Addresses[0]) })
	for _, port := range s.Spec.Ports {
		number, protocol, name := target(port, first), port.Protocol, port.Name
		slice.Ports = append(slice.Ports, discovery.EndpointPort{
			Name: &name, Port: &number, Protocol: &protocol, AppProtocol: port.AppProtocol,
		})
	}
	return slice
}

// target returns the number of a service's port in a pod. A named port is looked up in the containers of p, any pod of
// the service; nil: there is none.
func target(port core.ServicePort, p *pod) int32 {
	if port.TargetPort.Type == intstr.Int {
		return port.TargetPort.IntVal
	}
	if p != nil {
		for _, k := range p.containers {
			for _, named := range k.spec.Ports {
				if named.Name == port.TargetPort.StrVal {
					return named.ContainerPort
				}
			}
		}
	}
	return port.Port
}

// writeSlice creates or updates a slice, if it differs. Gateways watch slices, and an update without a change would
// make them rebuild their configuration five times a second.
func (c *Cluster) writeSlice(ctx context.Context, slice *discovery.EndpointSlice) error {
	all := c.Kube.DiscoveryV1().EndpointSlices(slice.Namespace)
	old, err := all.Get(ctx, slice.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = all.Create(ctx, slice, metav1.CreateOptions{})
		return err
	}
	if err != nil || equality.Semantic.DeepEqual(old.Endpoints, slice.Endpoints) && equality.Semantic.DeepEqual(old.Ports, slice.Ports) {
		return err
	}
	old.Endpoints, old.Ports = slice.Endpoints, slice.Ports
	_, err = all.Update(ctx, old, metav1.UpdateOptions{})
	return err
}

// showService says that a load balancer has the address of the service. Gateways' operators wait for an address before
// they report a Gateway as programmed.
func (c *Cluster) showService(ctx context.Context, s *core.Service) error {
	if s.Spec.Type != core.ServiceTypeLoadBalancer || len(s.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	s.Status.LoadBalancer.Ingress = []core.LoadBalancerIngress{{IP: s.Spec.ClusterIP}}
	_, err := c.Kube.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = nil
	}
	return err
}

// Endpoints returns where the ready pods of a service listen, for one of its ports. It reads the API server, and is
// safe for any goroutine.
func (c *Cluster) Endpoints(ctx context.Context, namespace, service, port string) (all []netip.AddrPort, err error) {
	slice, err := c.Kube.DiscoveryV1().EndpointSlices(namespace).Get(ctx, service+"-pods", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range slice.Ports {
		if *p.Name != port {
			continue
		}
		for _, e := range slice.Endpoints {
			if *e.Conditions.Ready {
				all = append(all, netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*p.Port))) //nolint:gosec // a port
			}
		}
	}
	return all, nil
}

// proxy hands connections to an address of a service to its pods in turn, as kube-proxy does. It reads the endpoints
// for each connection, from the API server, so that it needs no state that the loop must share. A proxy that is there
// stays.
func (c *Cluster) proxy(ctx context.Context, address, namespace, service, port string) error {
	if c.proxies[address] != nil {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	c.proxies[address] = l
	var turn atomic.Uint64
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			go func() {
				defer conn.Close()
				all, err := c.Endpoints(ctx, namespace, service, port)
				if err != nil || len(all) == 0 {
					return
				}
				pod, err := new(net.Dialer).DialContext(ctx, "tcp", all[turn.Add(1)%uint64(len(all))].String())
				if err != nil {
					return
				}
				defer pod.Close()
				pass(conn.(*net.TCPConn), pod.(*net.TCPConn))
			}()
		}
	}()
	return nil
}

// pass copies both ways until both ended. The end of one direction is passed on (CloseWrite), and the other may go on.
func pass(a, b *net.TCPConn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(a, b)
		_ = a.CloseWrite()
	}()
	_, _ = io.Copy(b, a)
	_ = b.CloseWrite()
	<-done
}
