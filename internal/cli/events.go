package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// eventKinds are the kinds of events: CRI's, as its enumeration orders them, and one of Berth's own.
var eventKinds = []string{"created", "started", "stopped", "deleted", "limit"}

// eventFilter chooses the events that are shown. What is empty lets all pass.
type eventFilter struct {
	pod, container string // a name, or the beginning of an id
	kinds          []string
}

func eventsCommand(n *app) *cobra.Command {
	var want eventFilter
	cmd := &cobra.Command{
		Use: "events", Short: "Show events of pods and containers", Args: exactly(0),
		Long: "Show events of pods and containers from now on, until interrupted. With -o json each line is one " +
			"event as CRI defines it, with the pod and its containers as they were after the event.",
		Example: examples("berth events", "berth events --pod web --kind stopped", "berth events -o json"),
	}
	format := outputFlag(cmd)
	cmd.Flags().StringVar(&want.pod, "pod", "", "only events of the pod with this `name` or id")
	cmd.Flags().StringVar(&want.container, "container", "", "only events of the container with this `name` or id")
	cmd.Flags().StringSliceVar(&want.kinds, "kind", nil, "only these `kinds`: "+strings.Join(eventKinds, ", "))
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(eventKinds, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, k := range want.kinds {
			if !slices.Contains(eventKinds, k) {
				return wrongUse(cmd, fmt.Errorf("--kind %s: there is %s", k, strings.Join(eventKinds, ", ")))
			}
		}
		return n.with(func(c *client) error {
			return c.events(cmd.Context(), &eventShow{stdout(cmd), want, *format, map[string]string{}})
		})
	}
	return cmd
}

// eventShow shows events. It knows the names of containers from events before the one that says that they are gone.
type eventShow struct {
	out    io.Writer
	filter eventFilter
	format string
	names  map[string]string // by id
}

func (c *client) events(ctx context.Context, show *eventShow) error {
	asking := metadata.AppendToOutgoingContext(ctx, admin.EventsKey, admin.EventsOfLimits)
	stream, err := c.GetContainerEvents(asking, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	if _, err := stream.Header(); err == nil && show.format == formatTable { // from here on nothing is missed
		fmt.Fprintln(show.out, eventRow("TIME", "EVENT", "WHAT", "NAME", "ID", "POD", ""))
	}
	for {
		e, err := stream.Recv()
		switch {
		case ctx.Err() != nil:
			return nil // interrupted, which is how this ends
		case errors.Is(err, io.EOF):
			return errors.New("the daemon ended the events")
		case err != nil:
			return err
		}
		if err := show.event(e); err != nil {
			return err
		}
	}
}

func eventRow(cells ...any) string {
	return strings.TrimRight(fmt.Sprintf("%-23s  %-7s  %-9s  %-20s  %-12s  %-30s  %s", cells...), " ")
}

func (v *eventShow) event(e *runtimeapi.ContainerEventResponse) error {
	id, s := e.GetContainerId(), e.GetPodSandboxStatus()
	for _, c := range e.GetContainersStatuses() {
		v.names[c.GetId()] = c.GetMetadata().GetName()
	}
	what, name := "container", v.names[id]
	if id == s.GetId() {
		what, name = "pod", s.GetMetadata().GetName()
	}
	if eventKind(e) == "deleted" {
		defer delete(v.names, id)
	}
	if !v.filter.matches(e, name) {
		return nil
	}
	if v.format == formatJSON {
		data, err := protoJSON(e)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(v.out, "%s\n", data)
		return err
	}
	more := ""
	if c := eventContainer(e); c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
		more = fmt.Sprintf("code %d %s", c.GetExitCode(), c.GetReason())
	} else if eventKind(e) == "limit" {
		more = c.GetReason() + ": " + c.GetMessage()
	}
	row := eventRow(time.Unix(0, e.GetCreatedAt()).Format("2006-01-02 15:04:05.000"), eventKind(e), what,
		cmp.Or(name, "-"), short(id), s.GetMetadata().GetNamespace()+"/"+s.GetMetadata().GetName(), more)
	if terminalOf(v.out) != nil {
		row = visibleLine(row)
	}
	_, err := fmt.Fprintln(v.out, row)
	return err
}

// eventContainer is the container that an event is about, nil when it is the pod or the container is gone.
func eventContainer(e *runtimeapi.ContainerEventResponse) *runtimeapi.ContainerStatus {
	for _, s := range e.GetContainersStatuses() {
		if s.GetId() == e.GetContainerId() {
			return s
		}
	}
	return nil
}

func eventKind(e *runtimeapi.ContainerEventResponse) string {
	kind := e.GetContainerEventType()
	if kind == admin.LimitEvent {
		return "limit"
	}
	if _, known := runtimeapi.ContainerEventType_name[int32(kind)]; known && int(kind) < len(eventKinds) {
		return eventKinds[kind]
	}
	return e.GetContainerEventType().String()
}

// matches reports whether an event is wanted that is about what has that name.
func (f eventFilter) matches(e *runtimeapi.ContainerEventResponse, name string) bool {
	named := func(want, name, id string) bool { return want == "" || want == name || strings.HasPrefix(id, want) }
	s, id := e.GetPodSandboxStatus(), e.GetContainerId()
	return named(f.pod, s.GetMetadata().GetName(), s.GetId()) &&
		(f.container == "" || id != s.GetId() && named(f.container, name, id)) &&
		(len(f.kinds) == 0 || slices.Contains(f.kinds, eventKind(e)))
}
