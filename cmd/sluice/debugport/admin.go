package debugport

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/sluice-gate/sluice/cmd/cli"
)

// Admin is the command with corrections on running nodes.
type Admin struct {
	Reset adminReset `cmd:"" help:"Reset the usage of a descriptor in this window."`
	Drop  adminDrop  `cmd:"" help:"Return the leases of a descriptor. The next request claims from the store."`
}

// adminFlags are those of both commands. The token is required, because both change something.
type adminFlags struct {
	descriptorArgs
	Debug []string `default:"${debug}" sep:"," placeholder:"HOST:PORT" help:"Debug ports of nodes, HOST:PORT, separated by commas."`
	All   bool     `help:"Include the other nodes of the fleet, which share the store."`
	Token string   `env:"ADMIN_TOKEN" required:"" help:"ADMIN_TOKEN of the nodes."`
}

// nodes are the debug ports to call. With --all it asks the named nodes for the others, and fails if none of them
// answers.
func (c *adminFlags) nodes() ([]string, error) {
	if !c.All {
		return c.Debug, nil
	}
	var v look
	v.ask(c.Debug)
	if err := v.failed(); err != nil {
		return nil, err
	}
	return append(slices.Clone(c.Debug), v.others(nil)...), nil
}

// adminReset is the command admin reset.
type adminReset struct{ adminFlags }

// Run resets by one node that can, and has all others drop their leases. Nodes that count alone reset each. The order:
// first all nodes drop their leases (quiet), then one resets the account, then all others drop again. A lease that a
// node took in between is so returned, too.
func (c *adminReset) Run(s cli.Streams) error {
	nodes, err := c.nodes()
	if err != nil {
		return err
	}
	if err := c.quiet(nodes); err != nil {
		return err
	}
	var errs []error
	// The first node that can reset ends the loop. A node that counts alone has reset its own part only, so the loop
	// goes on.
	for i, address := range nodes {
		answer, err := c.call(address, "/admin/reset?")
		if err == nil {
			err = answer.write(s, address)
		}
		if err == nil && !answer.Alone {
			return errors.Join(c.drop(s, slices.Delete(nodes, i, i+1))...)
		}
		errs = append(errs, err) // perhaps another node owns it
	}
	return errors.Join(errs...)
}

// quiet has all nodes drop the key: refusals that they report later would be charged after the reset. It returns that a
// node refuses to. Other errors come up again in the drop after the reset.
func (c *adminFlags) quiet(nodes []string) error {
	errs := c.drop(cli.Streams{Out: io.Discard, Err: io.Discard}, nodes)
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		_, refused := errors.AsType[*refusal](err)
		return !refused
	})...)
}

// drop has all nodes drop their leases at once, so that one that hangs delays no other. It prints the answers in the
// order of the nodes, and returns their errors.
func (c *adminFlags) drop(s cli.Streams, nodes []string) []error {
	answers, errs := make([]done, len(nodes)), make([]error, len(nodes))
	var all sync.WaitGroup
	for i, address := range nodes {
		all.Go(func() { answers[i], errs[i] = c.call(address, "/admin/drop?") })
	}
	all.Wait()
	for i, address := range nodes {
		if errs[i] == nil {
			errs[i] = answers[i].write(s, address)
		}
	}
	return errs
}

// adminDrop is the command admin drop.
type adminDrop struct{ adminFlags }

// Run drops the lease on every node named.
func (c *adminDrop) Run(s cli.Streams) error {
	nodes, err := c.nodes()
	if err != nil {
		return err
	}
	return errors.Join(c.drop(s, nodes)...)
}

// call sends one command to one node.
func (c *adminFlags) call(address, path string) (answer done, err error) {
	err = (port{address, c.Token}).call(http.MethodPost, path+c.query(), nil, &answer)
	return answer, err
}

// write prints a node's answer behind its address.
func (d *done) write(s cli.Streams, address string) error {
	_, err := fmt.Fprintf(s.Out, "%s: %s\n", address, d.Done)
	return err
}
