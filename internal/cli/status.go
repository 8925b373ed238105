package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

func infoCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "info", Aliases: []string{"status"}, Args: exactly(0),
		Short: "Show the state of the daemon: conditions, handlers, features, counts",
		Long: "Show the state of the daemon: whether it and the network are ready, its runtime handlers, its " +
			"directories, and the number of pods, containers and images. With -o json it is the status of CRI, " +
			"as crictl info prints it.",
		Example: examples("berth info", "berth info -o json"),
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error { return printInfo(cmd, c, *format) })
	}
	return cmd
}

func printInfo(cmd *cobra.Command, c *client, format string) error {
	ctx := cmd.Context()
	s, err := c.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return err
	}
	if format == formatJSON {
		return printProto(stdout(cmd), s)
	}
	n, err := c.survey(ctx)
	if err != nil {
		return err
	}
	images, err := c.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return err
	}
	daemon, err := c.node.Info(ctx)
	if err != nil {
		return err
	}
	driver, err := c.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		return err
	}
	sheet := [][2]string{{"version", daemon.Version}}
	sheet = append(sheet, conditions(s)...)
	sheet = append(sheet,
		[2]string{"pods", fmt.Sprintf("%d, of which berth run made %d", len(n.pods), own(n))},
		[2]string{"containers", fmt.Sprintf("%d, of which %d run", len(n.containers), runningOf(n))},
		[2]string{"images", fmt.Sprint(len(images.GetImages()))},
		[2]string{"handlers", handlerNames(s.GetRuntimeHandlers())},
		[2]string{"cgroup driver", strings.ToLower(driver.GetLinux().GetCgroupDriver().String())},
	)
	sheet = append(sheet, places(daemon)...)
	if len(daemon.Problems) > 0 {
		sheet = append(sheet, [2]string{"problems", fmt.Sprintf("%d; berth doctor tells of them", len(daemon.Problems))})
	}
	t := &table{}
	for _, row := range sheet {
		t.add(row[0], row[1])
	}
	return t.print(stdout(cmd))
}

// conditions are those of CRI's status, each with why it is not.
func conditions(s *runtimeapi.StatusResponse) (rows [][2]string) {
	for _, c := range s.GetStatus().GetConditions() {
		name := strings.ToLower(strings.TrimSuffix(c.GetType(), "Ready"))
		text := "ready"
		if !c.GetStatus() {
			text = "not ready: " + strings.TrimPrefix(c.GetReason()+": "+oneLine(c.GetMessage()), ": ")
		}
		rows = append(rows, [2]string{name, text})
	}
	return rows
}

func own(n *node) (count int) {
	for _, p := range n.pods {
		if madeByRun(p) {
			count++
		}
	}
	return count
}

func runningOf(n *node) (count int) {
	for _, c := range n.containers {
		if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			count++
		}
	}
	return count
}

// handlerNames are the runtime handlers that pods can ask for; the first of CRI's list is the default's.
func handlerNames(all []*runtimeapi.RuntimeHandler) string {
	var names []string
	for _, h := range all {
		if h.GetName() != "" {
			names = append(names, h.GetName())
		}
	}
	if names == nil {
		return "-"
	}
	return strings.Join(names, ", ")
}

// places are where the daemon keeps what, by the configuration in force.
func places(daemon *admin.InfoResponse) [][2]string {
	cfg, err := readConfig(daemon.Config)
	if err != nil {
		return nil // of a daemon of another version
	}
	return [][2]string{{"root", cfg.Root}, {"state", cfg.State}, {"socket", cfg.Socket}}
}
