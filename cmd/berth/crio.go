package main

import (
	"context"

	"google.golang.org/grpc"

	"berth/internal/crio"
)

// serveCRIO answers a kubelet's cAdvisor at the socket of CRI-O, where the configuration says so. A socket that another
// process serves is left to it, and the daemon goes on without.
func serveCRIO(n *node, g *grpc.Server) {
	path := n.cfg.CRIOSocket
	if path == "" {
		return
	}
	l, err := listenAt(path, "crio_socket")
	if err != nil {
		n.log.Error("a kubelet's cAdvisor will not know containers by their names: its socket cannot be served", "error", err)
		return
	}
	s := &crio.Server{
		Containers: n.criServer, Images: n.cfg.ImagesRoot(), Log: n.log, CRI: g.Serve,
	}
	n.log.Info("a kubelet's cAdvisor is answered as by CRI-O", "socket", path)
	n.background.run(func(ctx context.Context) {
		defer l.name.Remove()
		if err := s.Serve(ctx, n.callers.Listener(l)); err != nil {
			n.log.Error("a kubelet's cAdvisor is answered no more", "error", err)
		}
	})
}
