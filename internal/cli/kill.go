package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/admin"
)

func killCommand(a *app) *cobra.Command {
	var signal string
	cmd := &cobra.Command{
		Use: "kill [flags] NAME...", Short: "Send a signal to containers", Args: atLeast(1), DisableFlagsInUseLine: true,
		Long: "Send a signal to the first process of containers: KILL, unless --signal names another. For a pod, " +
			"all running containers get it. The command does not wait for the effect; berth wait does.",
		Example:           examples("berth kill web", "berth kill -s HUP web"),
		ValidArgsFunction: a.complete(targets),
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "KILL", "`signal` to send, by name or number")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			return c.forEach(cmd, args, func(n *node, t target) error {
				if t.container != "" {
					t.pod = "" // its own, where it stands for its pod
				}
				for _, id := range n.containersOf(t) {
					err := c.node.Signal(cmd.Context(), &admin.SignalRequest{Container: id, Signal: signal})
					if err != nil {
						return about("signal container", id, err)
					}
				}
				return nil
			})
		})
	}
	return cmd
}

func tagCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "tag IMAGE NAME...", Short: "Give an image more names", Args: atLeast(2),
		ValidArgsFunction: a.completeFirst(images),
		Long:              "Give an image more names. A name that another image has moves to this one.",
		Example:           examples("berth tag docker.io/library/nginx:latest registry.example/web:v1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(func(c *client) error {
				img, err := c.image(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				for _, name := range args[1:] {
					if err := c.node.Tag(cmd.Context(), &admin.TagRequest{Image: img.GetId(), Name: name}); err != nil {
						return fmt.Errorf("tag %s: %w", args[0], err)
					}
				}
				return nil
			})
		},
	}
}
