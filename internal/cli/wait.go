package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func waitCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "wait CONTAINER...", Short: "Wait until containers have ended, and print their exit codes", Args: atLeast(1),
		Long: "Wait until containers have ended, one after another, and print the exit code of each. If the " +
			"daemon restarts meanwhile, the command waits for it.",
		Example:           examples("berth wait job", "berth wait a b"),
		ValidArgsFunction: a.complete(containers),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(func(c *client) error { return waitFor(cmd, c, args) })
		},
	}
}

// waitFor finds all that it is to wait for before it waits, so that a wrong word is told at once.
func waitFor(cmd *cobra.Command, c *client, words []string) error {
	watches := make([]*watch, len(words))
	for i, word := range words {
		id, err := c.container(cmd.Context(), word)
		if err != nil {
			return err
		}
		watches[i] = c.watch(id)
	}
	var failed []error
	for i, w := range watches {
		err := w.wait(cmd.Context())
		switch {
		case cmd.Context().Err() != nil:
			return errors.New("interrupted")
		case err == nil && w.status == nil:
			err = fmt.Errorf("container %s was removed", short(w.id))
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("wait for %s: %w", words[i], err))
			continue
		}
		fmt.Fprintln(stdout(cmd), w.status.GetExitCode())
	}
	return errors.Join(failed...)
}
