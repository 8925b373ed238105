package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"berth/internal/config"
)

func configCommand(a *app) *cobra.Command {
	var defaults bool
	cmd := &cobra.Command{
		Use: "config", Short: "Print the daemon's configuration, with comments", Args: exactly(0),
		Long: "Print the configuration that the daemon has in force. If no daemon is running, print the " +
			"configuration with which one would start: that of BERTH_CONFIG, or of " +
			config.DefaultPath + ".",
		Example: examples("berth config", "berth config --default > "+config.DefaultPath),
	}
	cmd.AddCommand(explainCommand())
	cmd.Flags().BoolVar(&defaults, "default", false, "the defaults, as a file to start from")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if defaults {
			_, err := io.WriteString(stdout(cmd), config.Default().TOML())
			return err
		}
		return a.with(func(c *client) error { return c.config(cmd) })
	}
	return cmd
}

func (c *client) config(cmd *cobra.Command) error {
	info, err := c.node.Info(cmd.Context())
	if err == nil {
		_, err = io.WriteString(stdout(cmd), info.Config)
		return err
	}
	if !isCode(err, codes.Unavailable) {
		return err
	}
	local, loadErr := localConfig()
	if loadErr != nil {
		return loadErr
	}
	fmt.Fprintf(stderr(cmd), "berth: %v; this is what it would start with:\n", err)
	_, err = io.WriteString(stdout(cmd), local.TOML())
	return err
}

// localConfig is what a daemon that is started now would have, its flags aside.
func localConfig() (*config.Config, error) {
	path := os.Getenv("BERTH_CONFIG")
	return config.Load(config.Flags{Path: path, PathSet: path != ""})
}

// localConfigPath is where localConfig looks.
func localConfigPath() string {
	if path := os.Getenv("BERTH_CONFIG"); path != "" {
		return path
	}
	if _, err := os.Stat(config.DefaultPath); absent(err) {
		return "the defaults, as there is no " + config.DefaultPath
	}
	return config.DefaultPath
}

// readConfig reads the text of a configuration, which package config reads from a file alone.
func readConfig(text string) (*config.Config, error) {
	dir, err := os.MkdirTemp("", "berth-config-") // a directory of its own has no conf.d
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "config.toml")
	defer func() {
		_ = os.Remove(path)
		_ = os.Remove(dir)
	}()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return config.Load(config.Flags{Path: path, PathSet: true})
}
