package cri

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/network"
)

// answering is a network that is ready from when it is made so.
type answering struct{ ready bool }

func (a *answering) Status() network.Status  { return network.Status{Ready: a.ready} }
func (a *answering) SetPodCIDR(string) error { return nil }

// TestStatusTellsTheNetworkAsItIs asks a node whose network becomes ready while the status waits for the handlers, as
// the first after a start does.
func TestStatusTellsTheNetworkAsItIs(t *testing.T) {
	a := &answering{}
	s := &Server{Network: a, Handlers: func() []*runtimeapi.RuntimeHandler {
		a.ready = true
		return nil
	}}
	resp, err := s.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range resp.Status.Conditions {
		if !c.Status {
			t.Errorf("%v", c)
		}
	}
}
