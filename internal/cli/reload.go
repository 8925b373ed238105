package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/config"
)

func reloadCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reload", Short: "Have the daemon take over its changed configuration", Args: exactly(0),
		Long: "Have the daemon read its configuration again and take over what a running daemon can; no pod is touched. It " +
			"tells each key that " +
			"has another value, and which of them need a restart. A bad configuration is refused whole.",
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
