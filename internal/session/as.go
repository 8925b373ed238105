package session

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/rootfs"
	"berth/internal/spec"
)

// As is how a command differs from the process of its container. What is empty does not.
type As struct {
	User string   // a name or number of the container's accounts, either with :group
	Dir  string   // where it starts
	Env  []string // NAME=VALUE
}

// change makes p what it is to be. Accounts are those that the container has now, read below its root.
func change(p *specs.Process, root string, as As) error {
	c := spec.ProcessChange{Dir: as.Dir, Env: as.Env}
	if as.User != "" {
		passwd, group, err := rootfs.Accounts(root)
		if err != nil {
			return err
		}
		user, err := spec.ResolveUser(passwd, group, spec.UserRequest{Image: as.User})
		if err != nil {
			return err
		}
		c.User = &user
	}
	return c.Apply(p)
}
