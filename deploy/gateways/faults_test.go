package gateways

import (
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	budget = 2500 // of a load: it lasts longer than most faults
	// Declared for mode approx by docs/reference/bounds.md: 1 % more, and five early refusals in a thousand requests.
	drift = budget / 100
	early = budget / 200
)

// A fault happens under a load.
type fault struct {
	name string
	do   func(w *world)
	// What docs/explain/leasing.md declares for the crash of a node. What deploys without a fault leaves no call without a limit, and budgets exact.
	stranded int64 // tokens that may stay unused
	free     int64 // calls that may pass without a limit: those in flight at the node, and at its connections
}

// Limiters are the nodes of a deployment.
type limiters struct {
	namespace, deployment, selector string
	metrics                         int // a port
}

var ofEnvoyGateway = limiters{system, "envoy-ratelimit", "app.kubernetes.io/name=envoy-ratelimit", 19001}

// faults are those of the nodes.
func (l limiters) faults() []fault {
	return []fault{
		{name: "limiters-restart", do: func(w *world) {
			w.restart(l.namespace, l.deployment)
			w.rolled(l.namespace, l.deployment)
			w.settled(l)
		}},
		{name: "limiter-is-killed", stranded: budget/20 + 3*rate, free: rate, do: func(w *world) {
			list, err := w.pods(l)
			w.check(err)
			now := int64(0)
			w.check(w.Kube.CoreV1().Pods(l.namespace).Delete(w.Context(), list.Items[0].Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
			time.Sleep(time.Second)
			w.rolled(l.namespace, l.deployment)
		}},
		{name: "limiters-scale", do: func(w *world) {
			w.scale(l, 5)
			w.scale(l, 3)
			w.settled(l)
		}},
	}
}

func (w *world) pods(l limiters) (*core.PodList, error) {
	return w.Kube.CoreV1().Pods(l.namespace).List(w.Context(), metav1.ListOptions{LabelSelector: l.selector})
}

// settled waits until the limiters that drain are gone.
func (w *world) settled(l limiters) {
	w.Helper()
	w.until(time.Minute, func() error {
		list, err := w.pods(l)
		if err == nil && len(list.Items) != 3 {
			err = fmt.Errorf("%d limiters are there", len(list.Items))
		}
		return err
	})
}

func (w *world) scale(l limiters, replicas int32) {
	w.Helper()
	deployments := w.Kube.AppsV1().Deployments(l.namespace)
	s, err := deployments.GetScale(w.Context(), l.deployment, metav1.GetOptions{})
	w.check(err)
	s.Spec.Replicas = replicas
	_, err = deployments.UpdateScale(w.Context(), l.deployment, s, metav1.UpdateOptions{})
	w.check(err)
	w.rolled(l.namespace, l.deployment)
}

// A target is a door, and requests that have one budget there.
type target struct {
	door
	call
}

// suffers plays a fault under a load on each target, with a budget at these nodes.
func (w *world) suffers(f fault, nodes limiters, mode string, targets ...target) {
	w.Helper()
	var loads []*load
	for _, to := range targets {
		l := to.begin(w.T, to.call)
		w.Cleanup(l.stop)
		loads = append(loads, l)
	}
	time.Sleep(time.Second)
	began := time.Now()
	f.do(w)
	took := time.Since(began)
	time.Sleep(time.Second)
	for _, l := range loads {
		l.end()
	}
	over, under := int64(0), f.stranded
	if mode == "approx" {
		over, under = drift, under+early
	}
	for _, l := range loads {
		during := l.String()
		l.drain(budget - f.stranded)
		w.T.Logf("%s, %.1f s; during it: %s; then: %s", l.request.Host, took.Seconds(), during, l)
		if n := l.free.Load(); n > f.free {
			if l.stall > 300*time.Millisecond { // other programs stall for longer: Envoy's timeout is a second
				w.Skipf("the machine is busy: requests stalled for %v, and %d calls passed without a limit", l.stall, n)
			}
			w.Errorf("%d calls passed without a limit", n)
		}
		if n := l.failed.Load(); n > 0 {
			w.Errorf("%d calls failed", n)
		}
	}
	for _, l := range loads {
		if n := l.passed.Load(); n > budget+over || n < budget-under {
			w.judge(nodes, 0, fmt.Errorf("of a budget of %d, %d passed", budget, n)) // nodes that the fault ended count no more
		}
	}
}
