package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod is a network, and the containers in it. It begins with its object in the API server, and ends when the object
// has a deletionTimestamp, or is gone. Any client of the API server can delete it. Three goroutines meet here: the
// loop, live, and each container's keep. stop and grace are the loop's order to end, and gone is live's answer.
type pod struct {
	*Cluster
	*core.Pod
	network    string
	address    string
	dir        string
	containers []*container

	stop   context.CancelFunc
	ending bool         // of the loop alone
	grace  atomic.Int64 // in nanoseconds; 0: at once
	gone   chan struct{}

	shown string // the status that the API server has; of the loop alone
}

// begin starts the containers of an object. Numbers are never used again, so an address of an ended pod answers no one.
// After an error the pod has no containers and stays, not ready, until its object is deleted: a pod that were gone would
// be made anew in each round.
func (c *Cluster) begin(ctx context.Context, object *core.Pod) (*pod, error) {
	c.nextPod++
	p := &pod{
		Cluster: c, Pod: object, network: fmt.Sprintf("p%d", c.nextPod), gone: make(chan struct{}),
		address: fmt.Sprintf("10.244.%d.%d", 1+c.nextPod/200, 1+c.nextPod%200),
		dir:     c.path("pods", object.Namespace+"_"+object.Name),
	}
	ctx, p.stop = context.WithCancel(ctx)
	first, err := p.prepare(fmt.Sprintf("v%d", c.nextPod))
	if err != nil {
		first, p.containers = nil, nil
	}
	go p.live(ctx, first)
	return p, err
}

// prepare makes the network and the containers, and returns the init containers. It lays a cable: one end is eth0 in the
// pod's network, and the other, host, a port of the bridge.
func (p *pod) prepare(host string) (first []*container, err error) {
	for _, args := range []string{
		"netns add " + p.network, "link add " + host + " type veth peer name eth0 netns " + p.network, "link set " + host + " master pods up",
		"-n " + p.network + " addr add " + p.address + "/16 dev eth0", "-n " + p.network + " link set eth0 up",
		"-n " + p.network + " link set lo up", "-n " + p.network + " route add default via " + nodeIP,
	} {
		if err := ip(strings.Fields(args)...); err != nil {
			return nil, err
		}
	}
	// As in container runtimes, any user can listen on any port.
	if err := within(p.network, p.Name, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	}); err != nil {
		return nil, err
	}
	// live removes the network and closes the logs. After an error in here, logs stay open.
	for i := range p.Spec.InitContainers {
		k, err := p.container(&p.Spec.InitContainers[i])
		if err != nil {
			return nil, err
		}
		k.first = true
		first = append(first, k)
	}
	for i := range p.Spec.Containers {
		k, err := p.container(&p.Spec.Containers[i])
		if err != nil {
			return nil, err
		}
		p.containers = append(p.containers, k)
	}
	return first, nil
}

// container returns a container with the image and the log of its specification. The log is opened once and appended
// to, so it has all runs of the container.
func (p *pod) container(spec *core.Container) (*container, error) {
	k := &container{pod: p, spec: spec, root: filepath.Join(p.dir, spec.Name)}
	for i, image := range p.Images {
		if k.image == nil && strings.Contains(spec.Image, image.Name) {
			k.image = &p.Images[i]
		}
	}
	if k.image == nil {
		return nil, fmt.Errorf("%s: nothing here stands for image %s", p.Name, spec.Image)
	}
	log, err := os.OpenFile(p.path("logs", p.Namespace+"_"+p.Name+"_"+spec.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	k.log = log
	return k, log.Chmod(0o666) // programs may open /dev/stdout again
}

// live runs the first containers in turn, and then the others until ctx is done. A pod whose init container is stopped
// starts no other: keep returns at once when ctx is done.
func (p *pod) live(ctx context.Context, first []*container) {
	defer close(p.gone)
	grace := func() time.Duration { return time.Duration(p.grace.Load()) }
	for _, k := range first {
		k.keep(ctx, grace)
		_ = k.log.Close()
	}
	var running sync.WaitGroup
	for _, k := range p.containers {
		running.Go(func() { k.keep(ctx, grace) })
	}
	running.Wait()
	<-ctx.Done() // the pod of a job stays, with its programs ended
	for _, k := range p.containers {
		_ = k.log.Close()
	}
	// It also removes the cable, whose other end is in the bridge.
	if err := ip("netns", "del", p.network); err != nil {
		p.Logf("%v", err)
	}
}

// end begins the end of the containers. With no grace they are killed. grace is stored before stop, because keep reads
// it when ctx is done.
func (p *pod) end(grace time.Duration) {
	p.ending = true
	p.grace.Store(int64(grace))
	p.stop()
}

// ready reports whether the pod can take requests. A pod is ready when all of its containers are. One whose begin failed
// has none.
func (p *pod) ready() bool {
	for _, k := range p.containers {
		if !k.ready.Load() {
			return false
		}
	}
	return len(p.containers) > 0
}

// finished reports whether all programs have ended well and stay so, as of a job.
func (p *pod) finished() bool {
	for _, k := range p.containers {
		if !k.done.Load() {
			return false
		}
	}
	return len(p.containers) > 0
}

// show writes the status of the pod, if it changed. It compares only the phase and readiness. Counts of restarts are
// written with the next change of those.
func (p *pod) show(ctx context.Context) error {
	phase, ready := core.PodRunning, core.ConditionFalse
	if p.finished() {
		phase = core.PodSucceeded
	} else if p.ready() && !p.ending {
		ready = core.ConditionTrue
	}
	shown := fmt.Sprint(phase, ready)
	if shown == p.shown {
		return nil
	}
	now := metav1.Now()
	s := core.PodStatus{
		Phase: phase, HostIP: nodeIP, PodIP: p.address, PodIPs: []core.PodIP{{IP: p.address}}, StartTime: &now,
		Conditions: []core.PodCondition{
			{Type: core.PodScheduled, Status: core.ConditionTrue, LastTransitionTime: now},
			{Type: core.PodInitialized, Status: core.ConditionTrue, LastTransitionTime: now},
			{Type: core.ContainersReady, Status: ready, LastTransitionTime: now},
			{Type: core.PodReady, Status: ready, LastTransitionTime: now},
		},
	}
	for _, k := range p.containers {
		s.ContainerStatuses = append(s.ContainerStatuses, core.ContainerStatus{
			Name: k.spec.Name, Ready: k.ready.Load(), RestartCount: k.restarts.Load(), Image: k.spec.Image, ImageID: "local",
			State: core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: now}},
		})
	}
	o, err := p.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err == nil {
		o.Status = s
		_, err = p.Kube.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
	}
	if err == nil || apierrors.IsNotFound(err) {
		p.shown, err = shown, nil
	}
	return err
}
