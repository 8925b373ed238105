package nri

import (
	"net"
	_ "unsafe" // for go:linkname

	"github.com/containerd/nri/pkg/adaptation"
)

// acceptPluginConnections is the adaptation's own: it serves those who connect to l, which Stop closes. The adaptation
// (v0.12.5) has no way to be given a listener, and the one that it makes itself accepts nobody any more after one
// error. It takes no lock: it is called before others use the adaptation.
//
//go:linkname acceptPluginConnections github.com/containerd/nri/pkg/adaptation.(*Adaptation).acceptPluginConnections
func acceptPluginConnections(a *adaptation.Adaptation, l net.Listener) error
