package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (a *app) psCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ps", Aliases: []string{"ls", "list"}, Short: "List containers", Args: exactly(0),
		Long: "List containers: those of a kubelet and those of berth run, without those that have ended.\n" +
			"\n" +
			"Keys of --filter: id, name (an expression), label, status (created, running, exited), ancestor " +
			"(the image), pod, namespace, exited (the code). A container has to match all keys that are given, " +
			"of a key that is given more than once one of the values (of label all).",
		Example: examples("berth ps -a", "berth ps -q --label app=web", "berth ps -a --filter exited=137",
			"berth ps -o json"),
	}
	l := listingFlags(cmd, "containers")
	cmd.Flags().BoolVarP(&l.all, "all", "a", false, "also those that are not running")
	cmd.Flags().StringArrayVar((*[]string)(&l.image), "image", nil, "only those of this `image`")
	cmd.Flags().StringArrayVarP((*[]string)(&l.pod), "pod", "p", nil, "only those of this `pod`")
	_ = cmd.RegisterFlagCompletionFunc("pod", a.complete(pods))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := l.read(); err != nil {
			return err
		}
		return a.with(func(c *client) error { return ps(cmd, c, l) })
	}
	return cmd
}

// running asks for what runs alone, where nothing else is listed.
func (l *listing) running() *runtimeapi.ContainerFilter {
	if l.all || l.latest || l.last > 0 || len(l.state) > 0 || len(l.exited) > 0 {
		return nil
	}
	return &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}
}

func ps(cmd *cobra.Command, c *client, l *listing) error {
	resp, err := c.ListContainers(cmd.Context(), &runtimeapi.ListContainersRequest{Filter: l.running()})
	if err != nil {
		return err
	}
	list := resp.GetContainers()
	sort.SliceStable(list, func(i, j int) bool { return list[i].GetCreatedAt() > list[j].GetCreatedAt() })
	pods, err := c.ListPodSandbox(cmd.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	byID := map[string]*runtimeapi.PodSandbox{}
	for _, p := range pods.GetItems() {
		byID[p.GetId()] = p
	}
	list = slices.DeleteFunc(list, func(i *runtimeapi.Container) bool {
		return !l.container(i,
			byID[i.GetPodSandboxId()])
	})
	if len(l.exited) == 0 {
		list = cut(l, list)
	}
	if *l.format == formatJSON && len(l.exited) == 0 {
		return printProto(stdout(cmd), &runtimeapi.ListContainersResponse{Containers: list})
	}
	if l.quiet && len(l.exited) == 0 {
		return printIDs(cmd, l, list)
	}
	return psTable(cmd, c, l, list, byID)
}

// printIDs prints the ids of what a list has.
func printIDs[T interface{ GetId() string }](cmd *cobra.Command, l *listing, list []T) error {
	for _, i := range list {
		if _, err := fmt.Fprintln(stdout(cmd), l.shown(i.GetId())); err != nil {
			return err
		}
	}
	return nil
}

// psTable shows containers with what only their states say, and those of their pods.
func psTable(cmd *cobra.Command, c *client, l *listing, list []*runtimeapi.Container,
	byID map[string]*runtimeapi.PodSandbox,
) error {
	now, ports := time.Now(), map[string]string{}
	t := newTable("CONTAINER", "NAME", "IMAGE", "STATE", "AGE", "RESTARTS", "PORTS", "POD", "NAMESPACE")
	var left []*runtimeapi.Container
	for _, i := range list {
		state, code, err := containerState(cmd.Context(), c, i, now)
		if isCode(err, codes.NotFound) || err == nil && !l.exited.is(code) {
			continue // it went meanwhile, or ended in another way
		}
		if err != nil {
			return err
		}
		id := i.GetPodSandboxId()
		if _, known := ports[id]; !known && !l.quiet {
			if ports[id], err = portsOf(cmd.Context(), c, id); err != nil {
				return err
			}
		}
		pod, namespace := l.shown(id), "-"
		if m := byID[id].GetMetadata(); m != nil {
			namespace = m.GetNamespace()
			if l.whole {
				pod = m.GetName() + " (" + id + ")"
			} else {
				pod = m.GetName()
			}
		}
		shown := ports[id]
		if i.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			shown = "-"
		}
		left = append(left, i)
		t.add(l.shown(i.GetId()), i.GetMetadata().GetName(), imageName(i), state, age(time.Unix(0, i.GetCreatedAt()), now),
			strconv.Itoa(int(i.GetMetadata().GetAttempt())), shown, pod, namespace)
	}
	left = cut(l, left)
	switch {
	case l.quiet:
		return printIDs(cmd, l, left)
	case *l.format == formatJSON:
		return printProto(stdout(cmd), &runtimeapi.ListContainersResponse{Containers: left})
	}
	t.rows = t.rows[:len(left)+1]
	return t.print(stdout(cmd))
}

// portsOf are the ports of the host that lead to a pod.
func portsOf(ctx context.Context, c *client, pod string) (string, error) {
	resp, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
	if isCode(err, codes.NotFound) {
		return "-", nil
	}
	if err != nil {
		return "", err
	}
	var texts []string
	for _, p := range podConfigOf(resp.GetInfo()).GetPortMappings() {
		if p.GetHostPort() == 0 {
			continue
		}
		text := fmt.Sprintf("%d->%d/%s", p.GetHostPort(), p.GetContainerPort(), strings.ToLower(p.GetProtocol().String()))
		if p.GetHostIp() != "" {
			text = net.JoinHostPort(p.GetHostIp(), text)
		}
		texts = append(texts, text)
	}
	if texts == nil {
		return "-", nil
	}
	return strings.Join(texts, ", "), nil
}

// podConfigOf is what a pod was asked to be, from its verbose status; nil where that does not say it.
func podConfigOf(info map[string]string) *runtimeapi.PodSandboxConfig {
	var v struct{ Config json.RawMessage }
	cfg := &runtimeapi.PodSandboxConfig{}
	if json.Unmarshal([]byte(info["info"]), &v) != nil ||
		(protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(v.Config, cfg) != nil {
		return nil
	}
	return cfg
}

// containerState is the state of a container in words, and its exit code. How one ended is only in its status.
func containerState(
	ctx context.Context, c *client, i *runtimeapi.Container, now time.Time,
) (text, code string, _ error) {
	if i.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		return stateText(i.GetState().String()), "", nil
	}
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: i.GetId()})
	if err != nil {
		return "", "", err
	}
	s := resp.GetStatus()
	code = strconv.Itoa(int(s.GetExitCode()))
	why := "code " + code
	if r := s.GetReason(); r != "" && r != "Completed" && r != "Error" {
		why += ", " + r
	}
	return fmt.Sprintf("exited %s (%s)", ago(time.Unix(0, s.GetFinishedAt()), now), why), code, nil
}

// stateText makes "running" of CONTAINER_RUNNING, and "notready" of SANDBOX_NOTREADY.
func stateText(state string) string {
	_, rest, _ := strings.Cut(state, "_")
	return strings.ToLower(rest)
}

// imageName is the name by which an image was asked for, or else its id.
func imageName(i *runtimeapi.Container) string {
	for _, name := range []string{i.GetImage().GetUserSpecifiedImage(), i.GetImage().GetImage(), i.GetImageId()} {
		if strings.HasPrefix(name, "sha256:") {
			return short(name)
		}
		if name != "" {
			return name
		}
	}
	return "-"
}

func (a *app) podsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pods", Short: "List pods", Args: exactly(0),
		Long: "List pods: those of a kubelet and those of berth run.\n" +
			"\n" +
			"Keys of --filter: id, name (an expression), label, status (ready, notready), namespace. A pod has " +
			"to match all that are given.",
		Example: examples("berth pods --namespace kube-system", "berth pods -q --state notready", "berth pods -l"),
	}
	l := listingFlags(cmd, "pods")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := l.read(); err != nil {
			return err
		}
		return a.with(func(c *client) error { return listPods(cmd, c, l) })
	}
	return cmd
}

func listPods(cmd *cobra.Command, c *client, l *listing) error {
	n, err := c.survey(cmd.Context())
	if err != nil {
		return err
	}
	sort.SliceStable(n.pods, func(i, j int) bool { return n.pods[i].GetCreatedAt() > n.pods[j].GetCreatedAt() })
	n.pods = cut(l, slices.DeleteFunc(n.pods, func(p *runtimeapi.PodSandbox) bool { return !l.podMatches(p) }))
	if *l.format == formatJSON {
		return printProto(stdout(cmd), &runtimeapi.ListPodSandboxResponse{Items: n.pods})
	}
	if l.quiet {
		return printIDs(cmd, l, n.pods)
	}
	count := map[string]int{}
	for _, i := range n.containers {
		count[i.GetPodSandboxId()]++
	}
	now := time.Now()
	t := newTable("POD", "NAME", "NAMESPACE", "STATE", "AGE", "CONTAINERS", "ADDRESS", "PROBLEM")
	for _, p := range n.pods {
		resp, err := c.PodSandboxStatus(cmd.Context(),
			&runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId(), Verbose: true})
		if isCode(err, codes.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		t.add(l.shown(p.GetId()), p.GetMetadata().GetName(), p.GetMetadata().GetNamespace(), stateText(p.GetState().String()),
			age(time.Unix(0, p.GetCreatedAt()), now), strconv.Itoa(count[p.GetId()]), address(resp.GetStatus()),
			stuck(resp.GetInfo()))
	}
	return t.print(stdout(cmd))
}

func address(s *runtimeapi.PodSandboxStatus) string {
	if s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		return "host"
	}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		return ip
	}
	return "-"
}

// stuck is what a pod's removal waits for, from its verbose status, in one line.
func stuck(info map[string]string) string {
	var v struct {
		Stuck map[string]any `json:"stuck"`
	}
	if json.Unmarshal([]byte(info["info"]), &v) != nil || v.Stuck == nil {
		return ""
	}
	for key, value := range v.Stuck {
		if text, ok := value.(string); ok && strings.EqualFold(key, "error") {
			return clip(strings.Join(strings.Fields(text), " "))
		}
	}
	return "stuck; see berth inspect"
}

// clip cuts a problem that would make a table unreadable.
func clip(text string) string {
	const most = 90
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…; see berth inspect"
	}
	return text
}
