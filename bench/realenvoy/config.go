package realenvoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/goccy/go-yaml"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Config is a configuration of Envoy, and where its clusters are here. place reads the YAML as a tree, changes
// addresses in it and nothing else, and writes JSON, which Envoy takes for YAML.
type Config struct {
	Text string // YAML, as it is shipped
	// Clusters are addresses, HOST:PORT, by a cluster's name. They stand in for its endpoints.
	// A cluster of one of the configuration's own listeners follows it.
	Clusters map[string][]string
	// HashKeys are the hash_key of each endpoint, for the clusters whose endpoints have one.
	HashKeys []string
}

type object = map[string]any

// at is the value below an object by names of fields and numbers of elements; nil if there is none. A value of another
// type counts as missing.
func at[T any](tree any, path ...any) (found T) {
	for _, step := range path {
		switch s := step.(type) {
		case string:
			o, _ := tree.(object)
			tree = o[s]
		case int:
			l, _ := tree.([]any)
			if s >= len(l) {
				return found
			}
			tree = l[s]
		}
	}
	found, _ = tree.(T)
	return found
}

// placed is a configuration with local addresses, and their list.
type placed struct {
	text   []byte // JSON
	listen string // of the first listener, HOST:PORT
	admin  string
}

// place puts a configuration's addresses where they are free. Listeners come first: clusters that point at one of them
// need its new port (moved).
func (c *Config) place() (*placed, error) {
	var tree object
	if err := yaml.Unmarshal([]byte(c.Text), &tree); err != nil {
		return nil, fmt.Errorf("reading a configuration of Envoy: %w", err)
	}
	listeners := at[[]any](tree, "static_resources", "listeners")
	if len(listeners) == 0 {
		return nil, errors.New("a configuration of Envoy without listeners")
	}
	ports, err := freeport.Find(len(listeners) + 1)
	if err != nil {
		return nil, err
	}
	p := &placed{admin: "127.0.0.1:" + ports[0], listen: "127.0.0.1:" + ports[1]}
	moved := map[string]string{} // ports
	for i, l := range listeners {
		a := at[object](l, "address", "socket_address")
		moved[fmt.Sprint(a["port_value"])] = ports[i+1]
		setAddress(a, "127.0.0.1:"+ports[i+1])
	}
	for _, cluster := range at[[]any](tree, "static_resources", "clusters") {
		if err := c.move(cluster, moved); err != nil {
			return nil, err
		}
	}
	tree["admin"] = object{"address": object{"socket_address": setAddress(object{}, p.admin)}}
	p.text, err = json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("writing a configuration of Envoy: %w", err)
	}
	return p, nil
}

// move gives a cluster its endpoints. Endpoints of a ring hash have a hash_key, by which Envoy must place them as the
// nodes place themselves. A missing key would send requests to other nodes than the owners, without an error.
func (c *Config) move(cluster any, moved map[string]string) error {
	name := at[string](cluster, "name")
	group := at[object](cluster, "load_assignment", "endpoints", 0)
	shipped := at[[]any](group, "lb_endpoints")
	if len(shipped) == 0 {
		return fmt.Errorf("cluster %s has no endpoints to stand in for", name)
	}
	addresses := c.Clusters[name]
	if own := at[object](shipped[0], "endpoint", "address", "socket_address"); addresses == nil {
		port := moved[fmt.Sprint(own["port_value"])]
		if port == "" {
			return fmt.Errorf("cluster %s has no address here", name)
		}
		addresses = []string{"127.0.0.1:" + port}
	}
	_, keyed := at[any](shipped[0], "metadata", "filter_metadata", "envoy.lb", "hash_key").(string)
	if keyed && len(c.HashKeys) != len(addresses) {
		return fmt.Errorf("cluster %s has %d endpoints, and %d hash keys", name, len(addresses), len(c.HashKeys))
	}
	here := make([]any, len(addresses))
	for i, address := range addresses {
		e := object{"endpoint": object{"address": object{"socket_address": setAddress(object{}, address)}}}
		if keyed {
			e["metadata"] = object{"filter_metadata": object{"envoy.lb": object{"hash_key": c.HashKeys[i]}}}
		}
		here[i] = e
	}
	group["lb_endpoints"] = here
	return nil
}

func setAddress(a object, address string) object {
	host, port, _ := net.SplitHostPort(address)
	a["address"] = host
	a["port_value"], _ = strconv.Atoi(port)
	return a
}

// WithoutFilter is a configuration without its first filter, and without the cluster that this asks. It relies on the
// shape of the configurations in deploy: the rate limit filter is the first one, and the backend the first cluster.
func WithoutFilter(text string) (string, error) {
	var tree object
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return "", fmt.Errorf("reading a configuration of Envoy: %w", err)
	}
	manager := at[object](tree, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
	manager["http_filters"] = at[[]any](manager, "http_filters")[1:]
	static := at[object](tree, "static_resources")
	static["clusters"] = at[[]any](static, "clusters")[:1]
	out, err := yaml.Marshal(tree)
	if err != nil {
		return "", fmt.Errorf("writing a configuration of Envoy: %w", err)
	}
	return string(out), nil
}
