package pods

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of the pods that the loop creates.
const (
	// An owner is the UID of a workload, and a revision the digest of its template.
	ownerKey    = "pods/owner"
	revisionKey = "pods/revision"
)

// loop makes the cluster what its objects say, five times a second. An error ends one round only: objects can change
// while a round reads them.
func (c *Cluster) loop(ctx context.Context) {
	defer close(c.finished)
	for ; ctx.Err() == nil; sleep(ctx, 200*time.Millisecond) {
		if err := c.reconcile(ctx); err != nil && ctx.Err() == nil {
			c.Logf("pods: %v", err)
			sleep(ctx, time.Second)
		}
	}
}

// reconcile is one round of the loop. A round first shows and ends pods, then scales each workload by at most one pod,
// removes pods without a workload, and updates services. Deployments may have one pod more while they roll (surge 1);
// the others replace pods in place. DaemonSets have one pod, on the one node.
//
// A failure of one workload is logged and does not hold up the others, such as a Deployment whose image is missing
// here.
func (c *Cluster) reconcile(ctx context.Context) error {
	pods, err := c.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := c.follow(ctx, pods.Items); err != nil {
		return err
	}
	owners := map[string]bool{}
	deployments, err := c.Kube.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, d := range deployments.Items {
		owners[string(d.UID)] = true
		updated, ready, err := c.scale(ctx, d.ObjectMeta, d.Spec.Template, *d.Spec.Replicas, 1)
		if err != nil {
			c.Logf("deployment %s: %v", d.Name, err)
		}
		if err := c.showDeployment(ctx, &d, updated, ready); err != nil {
			return err
		}
	}
	sets, err := c.Kube.AppsV1().StatefulSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range sets.Items {
		owners[string(s.UID)] = true
		if _, _, err := c.scale(ctx, s.ObjectMeta, s.Spec.Template, *s.Spec.Replicas, 0); err != nil {
			c.Logf("stateful set %s: %v", s.Name, err)
		}
	}
	daemons, err := c.Kube.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, d := range daemons.Items {
		owners[string(d.UID)] = true
		if _, _, err := c.scale(ctx, d.ObjectMeta, d.Spec.Template, 1, 0); err != nil {
			c.Logf("daemon set %s: %v", d.Name, err)
		}
	}
	jobs, err := c.Kube.BatchV1().Jobs("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, j := range jobs.Items {
		owners[string(j.UID)] = true
		if _, _, err := c.scale(ctx, j.ObjectMeta, j.Spec.Template, 1, 0); err != nil {
			c.Logf("job %s: %v", j.Name, err)
		}
	}
	for _, p := range c.pods {
		if !owners[p.Annotations[ownerKey]] && !p.ending {
			if err := c.remove(ctx, p); err != nil {
				return err
			}
		}
	}
	return c.serve(ctx)
}

// follow ends the pods that are deleted, and shows the state of the others. With a node name, the API server only marks
// a pod as deleted. It removes the object when the node says that the containers have ended: a deletion with a grace of
// 0. The precondition protects a later pod of the same name.
func (c *Cluster) follow(ctx context.Context, objects []core.Pod) error {
	there := map[types.UID]*core.Pod{}
	for i := range objects {
		there[objects[i].UID] = &objects[i]
	}
	for uid, p := range c.pods {
		o := there[uid]
		switch {
		case !p.ending && o == nil:
			p.end(0)
		case !p.ending && o.DeletionTimestamp != nil:
			p.end(time.Duration(*o.DeletionGracePeriodSeconds) * time.Second)
		}
		select {
		case <-p.gone:
			delete(c.pods, uid)
			now := int64(0)
			err := c.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
				GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &uid},
			})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			continue
		default:
		}
		if err := p.show(ctx); err != nil {
			return fmt.Errorf("status of %s: %w", p.Name, err)
		}
	}
	return nil
}

// scale adds or removes one pod of a workload, if there are not as many of its present template as there should be. At
// most surge are more than that. It removes a ready pod only if enough others are ready. A rollout is thus a sequence
// of rounds: one new pod, wait until it is ready, one old pod away.
func (c *Cluster) scale(ctx context.Context, owner metav1.ObjectMeta, template core.PodTemplateSpec, replicas, surge int32,
) (updated, ready int32, err error) {
	text, err := json.Marshal(template)
	if err != nil {
		return 0, 0, err
	}
	revision := fmt.Sprintf("%x", sha256.Sum256(text))[:10]
	var fresh, stale []*pod
	for _, p := range c.pods {
		if p.ending || p.Annotations[ownerKey] != string(owner.UID) {
			continue
		}
		if p.ready() {
			ready++
		}
		if p.Annotations[revisionKey] == revision {
			fresh = append(fresh, p)
		} else {
			stale = append(stale, p)
		}
	}
	updated = int32(len(fresh))        //nolint:gosec // a few
	all := updated + int32(len(stale)) //nolint:gosec // a few
	// Stale pods go first. Fresh ones go only if there are more than replicas, as after a scale-down.
	spare := append(stale, fresh...)
	if updated <= replicas {
		spare = stale
	}
	// Those that are not ready go first: they serve no one.
	slices.SortStableFunc(spare, func(a, b *pod) int {
		switch {
		case a.ready() == b.ready():
			return 0
		case b.ready():
			return -1
		default:
			return 1
		}
	})
	switch {
	case updated < replicas && all < replicas+surge:
		return updated, ready, c.add(ctx, owner, template, revision)
	// Without a surge, an old pod must go before a new one has a place.
	case len(spare) > 0 && (ready > replicas || surge == 0 || !spare[0].ready()):
		return updated, ready, c.remove(ctx, spare[0])
	}
	return updated, ready, nil
}

// add creates a pod of a template, and begins it. The API server makes the name of GenerateName and a random end. The
// name is also the pod's host name, of at most 63 characters: hence 40 of the workload's.
func (c *Cluster) add(ctx context.Context, owner metav1.ObjectMeta, template core.PodTemplateSpec, revision string) error {
	o := &core.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	o.Namespace, o.GenerateName = owner.Namespace, owner.Name[:min(40, len(owner.Name))]+"-"
	o.Spec.NodeName = "node"
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, ownerKey, string(owner.UID))
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, revisionKey, revision)
	o, err := c.Kube.CoreV1().Pods(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p, err := c.begin(ctx, o)
	c.pods[o.UID] = p
	return err
}

// remove deletes the object of a pod. The loop then ends the pod. The object's grace period is the pod's own, from its
// template.
func (c *Cluster) remove(ctx context.Context, p *pod) error {
	err := c.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return err
}

// showDeployment writes the status of a Deployment. It writes only if a number changed: each write gives the object
// another version and wakes all that watch it. kubectl rollout status and gateways' operators read these numbers.
func (c *Cluster) showDeployment(ctx context.Context, d *apps.Deployment, updated, ready int32) error {
	all := int32(0)
	for _, p := range c.pods {
		if !p.ending && p.Annotations[ownerKey] == string(d.UID) {
			all++
		}
	}
	s := apps.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: all, UpdatedReplicas: min(updated, all), ReadyReplicas: min(ready, all),
		AvailableReplicas: min(ready, all), UnavailableReplicas: max(0, *d.Spec.Replicas-ready),
	}
	available := core.ConditionFalse
	if ready >= *d.Spec.Replicas {
		available = core.ConditionTrue
	}
	old := d.Status
	old.Conditions = nil
	old.TerminatingReplicas = nil
	if old.ObservedGeneration == s.ObservedGeneration && fmt.Sprintf("%+v", old) == fmt.Sprintf("%+v", s) {
		return nil
	}
	now := metav1.Now()
	s.Conditions = []apps.DeploymentCondition{
		{Type: apps.DeploymentAvailable, Status: available, Reason: "Pods", LastUpdateTime: now, LastTransitionTime: now},
		{Type: apps.DeploymentProgressing, Status: core.ConditionTrue, Reason: "NewReplicaSetAvailable", LastUpdateTime: now, LastTransitionTime: now},
	}
	d.Status = s
	_, err := c.Kube.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = nil // it changed: the next round sees it
	}
	return err
}
