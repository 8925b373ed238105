package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lister shows what there is.
type lister struct{ *client }

func (a *app) psCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: "ps", Short: "List containers", Args: exactly(0), Example: examples("berth ps -a", "berth ps -o json")}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that do not run")
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error { return lister{c}.ps(cmd, all, *format) })
	}
	return cmd
}

func (c lister) ps(cmd *cobra.Command, all bool, format string) error {
	req := &runtimeapi.ListContainersRequest{}
	if !all {
		req.Filter = &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}
	}
	resp, err := c.ListContainers(cmd.Context(), req)
	if err != nil {
		return err
	}
	list := resp.GetContainers()
	sort.SliceStable(list, func(i, j int) bool { return list[i].GetCreatedAt() > list[j].GetCreatedAt() })
	if format == formatJSON {
		return printProto(stdout(cmd), resp)
	}
	pods, err := c.ListPodSandbox(cmd.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	n, now := &node{pods: pods.GetItems()}, time.Now()
	t := newTable("CONTAINER", "NAME", "IMAGE", "STATE", "AGE", "POD")
	for _, i := range list {
		state, err := c.containerState(cmd.Context(), i, now)
		if isCode(err, codes.NotFound) {
			continue // it went meanwhile
		}
		if err != nil {
			return err
		}
		pod := short(i.GetPodSandboxId())
		if m := n.pod(i.GetPodSandboxId()).GetMetadata(); m != nil {
			pod = m.GetName() + " (" + pod + ")"
		}
		t.add(short(i.GetId()), i.GetMetadata().GetName(), imageName(i), state, age(time.Unix(0, i.GetCreatedAt()), now), pod)
	}
	return t.print(stdout(cmd))
}

// containerState is the state of a container in words. How one ended is only in its status.
func (c lister) containerState(ctx context.Context, i *runtimeapi.Container, now time.Time) (string, error) {
	if i.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		return stateText(i.GetState().String()), nil
	}
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: i.GetId()})
	if err != nil {
		return "", err
	}
	s := resp.GetStatus()
	why := fmt.Sprintf("code %d", s.GetExitCode())
	if r := s.GetReason(); r != "" && r != "Completed" && r != "Error" {
		why += ", " + r
	}
	return fmt.Sprintf("exited %s (%s)", ago(time.Unix(0, s.GetFinishedAt()), now), why), nil
}

// stateText makes "running" of CONTAINER_RUNNING, and "notready" of SANDBOX_NOTREADY.
func stateText(state string) string {
	_, rest, _ := strings.Cut(state, "_")
	return strings.ToLower(rest)
}

// imageName is what a person asked for; the id does when nobody said.
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
	cmd := &cobra.Command{Use: "pods", Short: "List pods", Args: exactly(0)}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error { return lister{c}.pods(cmd, *format) })
	}
	return cmd
}

func (c lister) pods(cmd *cobra.Command, format string) error {
	n, err := c.survey(cmd.Context())
	if err != nil {
		return err
	}
	sort.SliceStable(n.pods, func(i, j int) bool { return n.pods[i].GetCreatedAt() > n.pods[j].GetCreatedAt() })
	if format == formatJSON {
		return printProto(stdout(cmd), &runtimeapi.ListPodSandboxResponse{Items: n.pods})
	}
	count := map[string]int{}
	for _, i := range n.containers {
		count[i.GetPodSandboxId()]++
	}
	now := time.Now()
	t := newTable("POD", "NAME", "NAMESPACE", "STATE", "AGE", "CONTAINERS", "ADDRESS", "PROBLEM")
	for _, p := range n.pods {
		resp, err := c.PodSandboxStatus(cmd.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId(), Verbose: true})
		if isCode(err, codes.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		t.add(short(p.GetId()), p.GetMetadata().GetName(), p.GetMetadata().GetNamespace(), stateText(p.GetState().String()),
			age(time.Unix(0, p.GetCreatedAt()), now), strconv.Itoa(count[p.GetId()]), address(resp.GetStatus()), stuck(resp.GetInfo()))
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
