package cri

import (
	"context"
	"slices"

	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/internal/sandbox"
)

// listed are the pods that this caller's lists have. A kubelet ends every pod that it did not make, so the pods of
// berth run are not in the lists, statistics and events of callers that do not ask for them. All is known of them to
// those who have their ids. docs/adr/0060 has the reasons.
func (s *Server) listed(ctx context.Context) []*sandbox.Record {
	all := s.Catalog.List()
	if s.seesAll(ctx) {
		return all
	}
	return slices.DeleteFunc(all, (*sandbox.Record).ByHand)
}

// hidden are the pods that this caller's lists do not have.
func (s *Server) hidden(ctx context.Context) []*sandbox.Record {
	if s.seesAll(ctx) {
		return nil
	}
	return slices.DeleteFunc(s.Catalog.List(), func(r *sandbox.Record) bool { return !r.ByHand() })
}

// seesAll reports whether a caller has asked for all pods, or the configuration has them listed for everybody.
func (s *Server) seesAll(ctx context.Context) bool {
	if s.ListByHand != nil && s.ListByHand() {
		return true
	}
	asked, _ := metadata.FromIncomingContext(ctx)
	return slices.Contains(asked.Get(admin.PodsKey), admin.AllPods)
}

// pinHidden has images that hidden pods use be pinned, so that a kubelet does not take them for unused and remove them.
func pinHidden(hidden []*sandbox.Record, items []*runtimeapi.Image) {
	used := map[string]bool{}
	for _, r := range hidden {
		for _, c := range r.Containers {
			used[c.Image] = true
			for _, v := range c.Volumes {
				used[v.Image] = true
			}
		}
	}
	for _, i := range items {
		i.Pinned = i.Pinned || used[i.Id]
	}
}
