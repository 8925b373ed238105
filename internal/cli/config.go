package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"berth/internal/config"
)

func (a nodeApp) configCommand() *cobra.Command {
	var defaults bool
	cmd := &cobra.Command{
		Use: "config", Short: "Print the daemon's configuration, with comments", Args: cobra.NoArgs,
		Long: "Print the configuration that the daemon has in force. With no daemon running it is the one that a daemon would start with: " +
			"that of BERTH_CONFIG, or of " + config.DefaultPath + ".",
	}
	cmd.Flags().BoolVar(&defaults, "default", false, "what holds where nothing is configured, as a file to start from")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if defaults {
			_, err := io.WriteString(cmd.OutOrStdout(), config.Default().TOML())
			return err
		}
		return a.with(func(c *client) error { return c.config(cmd) })
	}
	return cmd
}

func (c *client) config(cmd *cobra.Command) error {
	info, err := c.node.Info(cmd.Context())
	if err == nil {
		_, err = io.WriteString(cmd.OutOrStdout(), info.Config)
		return err
	}
	if !isCode(err, codes.Unavailable) {
		return err
	}
	local, loadErr := localConfig()
	if loadErr != nil {
		return loadErr
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "berth: this is what a daemon would start with: %v\n", err)
	_, err = io.WriteString(cmd.OutOrStdout(), local.TOML())
	return err
}

// localConfig is what a daemon that is started now would have, its flags aside.
func localConfig() (*config.Config, error) {
	path := os.Getenv("BERTH_CONFIG")
	return config.Load(config.Flags{Path: path, PathSet: path != ""})
}
