package nri

import (
	"errors"
	"log/slog"
	"net"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/containerd/nri/pkg/adaptation"
	"golang.org/x/sys/unix"
)

// acceptPluginConnections is the adaptation's own: it serves those who connect to l, which Stop closes. The adaptation
// (v0.12.5) has no way to be given a listener, and the one that it makes itself accepts nobody any more after one
// error. It takes no lock: it is called before others use the adaptation.
//
//go:linkname acceptPluginConnections github.com/containerd/nri/pkg/adaptation.(*Adaptation).acceptPluginConnections
func acceptPluginConnections(a *adaptation.Adaptation, l net.Listener) error

// noRoom is the pause where the kernel has no room for another connection.
const noRoom = 100 * time.Millisecond

// retrying is a listener that goes on accepting where the kernel has no room for a connection for a while.
type retrying struct {
	net.Listener
	log *slog.Logger
}

// Accept implements net.Listener.
func (l retrying) Accept() (net.Conn, error) {
	for told := false; ; told = true {
		c, err := l.Listener.Accept()
		if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) && !errors.Is(err, unix.ENOMEM) &&
			!errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ECONNABORTED) {
			return c, err
		}
		if !told {
			l.log.Warn("NRI: a plugin that connects has to wait", "error", err)
		}
		time.Sleep(noRoom)
	}
}
