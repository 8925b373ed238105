package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func updateCommand(a *app) *cobra.Command {
	o := &resourceOptions{}
	cmd := &cobra.Command{
		Use: "update [flags] CONTAINER...", Short: "Change the limits of running containers",
		DisableFlagsInUseLine: true,
		Long: "Change the limits of running containers. Limits without a flag stay as they are. A kubelet's " +
			"containers are changed, too, until the kubelet changes them back.",
		Example:           examples("berth update -m 1g --memory-swap 1g web", "berth update --cpus 0.5 a b"),
		Args:              atLeast(1),
		ValidArgsFunction: a.complete(runningContainers),
	}
	o.register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := o.linux()
		if err == nil && r == nil {
			err = wrongUse(cmd, errors.New("say what to change: --memory, --cpus and the like"))
		}
		if err != nil {
			return err
		}
		return a.with(func(c *client) error { return updateEach(cmd, c, args, r) })
	}
	return cmd
}

func updateEach(cmd *cobra.Command, c *client, words []string, r *runtimeapi.LinuxContainerResources) error {
	var failed []error
	for _, word := range words {
		id, err := c.container(cmd.Context(), word)
		if err == nil {
			req := &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r}
			_, err = c.UpdateContainerResources(cmd.Context(), req)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("update %s: %w", word, err))
			continue
		}
		fmt.Fprintln(stdout(cmd), word)
	}
	return errors.Join(failed...)
}
