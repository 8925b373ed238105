package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/config"
)

func reloadCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reload", Short: "Put a changed configuration in force", Args: exactly(0),
		Long: "Have the daemon read its configuration again and put it in force, except keys that need a restart; " +
			"no pod is touched. The command prints each key with a new value, and which of them need a restart. " +
			"A configuration with an error is refused as a whole.",
		Example: examples("berth reload"),
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error { return reload(cmd, c, *format) })
	}
	return cmd
}

func reload(cmd *cobra.Command, c *client, format string) error {
	resp, err := c.node.Reload(cmd.Context())
	if err != nil {
		return err
	}
	if format == formatJSON {
		return printJSON(stdout(cmd), resp)
	}
	if len(resp.Changes) == 0 {
		_, err = fmt.Fprintln(stdout(cmd), "nothing has changed")
		return err
	}
	for _, change := range resp.Changes {
		if _, err := fmt.Fprintln(stdout(cmd), config.Change(change)); err != nil {
			return err
		}
	}
	return nil
}
