package network

import (
	"errors"
	"time"

	"berth/internal/fail"
)

// NotReady is the reason that kubelets know for a network that is not ready.
const NotReady = "NetworkPluginNotReady"

// Status reports whether pods can be attached, and if not, why and what to do.
type Status struct {
	Ready           bool
	Reason, Message string   // both empty when ready
	Network, File   string   // the network in force and where it is configured, "" when there is none
	Plugins         []string // of that network, in order
	Capabilities    []string // that any of them declares, such as portMappings
	Since           time.Time
}

// snapshot is what one look at the configuration found.
type snapshot struct {
	status Status
	conf   *netconf // nil when it is not usable
}

func describe(conf *netconf, err error) Status {
	if err != nil {
		message := fail.Clip(err.Error())
		if errors.Is(err, ErrNoConfig) {
			message += "; pods without host networking wait until a network plugin or the administrator puts one there"
		}
		return Status{Reason: NotReady, Message: message, Since: time.Now()}
	}
	s := Status{
		Ready: true, Network: conf.Name, File: conf.File, Capabilities: conf.capabilities(), Since: time.Now(),
	}
	for _, p := range conf.Plugins {
		s.Plugins = append(s.Plugins, p.Type)
	}
	return s
}

// same reports whether two looks found the same.
func same(a, b *snapshot) bool {
	if a.conf == nil || b.conf == nil {
		return a.conf == b.conf && a.status.Message == b.status.Message
	}
	return a.conf.equal(b.conf)
}
