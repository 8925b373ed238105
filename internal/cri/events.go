package cri

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/internal/limit"
	"berth/internal/pod"
)

var eventTypes = map[pod.EventKind]runtimeapi.ContainerEventType{
	pod.EventCreated: runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT,
	pod.EventStarted: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
	pod.EventStopped: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT,
	pod.EventDeleted: runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
	pod.EventLimit:   admin.LimitEvent,
}

// GetContainerEvents sends what happens to pods and containers until the caller has enough, from the moment that it has
// sent its header. It ends with ResourceExhausted for a caller that does not read.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	w := s.Pods.Feed.Watch()
	defer w.Close()
	if err := limit.Watchers.Check(int64(s.Pods.Feed.EventCounts().Watchers)); err != nil {
		return err
	}
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	asked, _ := metadata.FromIncomingContext(stream.Context())
	limits := slices.Contains(asked.Get(admin.EventsKey), admin.EventsOfLimits)
	for {
		e, err := w.Next(stream.Context())
		if stream.Context().Err() != nil {
			return nil // the caller went, which is how this ends
		}
		if err != nil {
			return err
		}
		if e.Kind == pod.EventLimit && !limits || e.Record.ByHand() && !s.seesAll(stream.Context()) {
			continue
		}
		if err := stream.Send(s.event(e)); err != nil {
			return err
		}
		w.Sent(e)
	}
}

// event makes the event for a kubelet: with the whole pod as of the event, so that the kubelet need not ask.
func (s *Server) event(e pod.Event) *runtimeapi.ContainerEventResponse {
	told := &runtimeapi.ContainerEventResponse{
		ContainerId: string(e.ID), ContainerEventType: eventTypes[e.Kind], CreatedAt: e.At.UnixNano(),
		PodSandboxStatus: podStatus(e.Record), ContainersStatuses: s.containerStatuses(e.Record),
	}
	for _, c := range told.ContainersStatuses {
		if e.Kind == pod.EventLimit && c.Id == told.ContainerId {
			c.Reason, c.Message = e.Reason, e.Message
		}
	}
	return told
}
