// Package pods stands for the parts of a Kubernetes cluster that run containers, on one Linux machine without
// containers. They are kubelet, kube-proxy, DNS and the controllers of deployments, sets and jobs, behind a real
// kube-apiserver. A program that writes a Deployment sees it run as written: command, environment, user, Secrets,
// ConfigMaps, projected tokens, probes, hooks, rolling updates, endpoint slices and names. An image is a list of
// programs of this machine.
//
// Guarantee: everything that runs is in the namespaces of one process (Enter): its network reaches no other, and its
// processes, networks and mounts end with it, however it ends.
//
// It does not schedule, and does not limit resources. It enforces no NetworkPolicy, and does not refresh the files of a
// running container. Until a container is ready, its probes come each quarter of a second, whatever their period.
//
// The parts: enter.go makes the namespaces, and cluster.go starts etcd and the API server in them. A loop then compares
// objects with what runs, five times a second (controllers.go), and is alone in changing pods and proxies. A pod is a
// network with containers (pod.go, container.go). Their variables and files come from objects (sources.go), and
// probe.go watches them. Services get endpoints and proxies (service.go), and names (dns.go). Tests write objects by
// apply.go, as a user does with kubectl.
package pods
