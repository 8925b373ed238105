package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (a *app) execCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "exec [flags] CONTAINER [--] COMMAND [ARG...]", Short: "Run a command in a container, without a terminal", DisableFlagsInUseLine: true,
		Long:              "Run a command in a container, and print what it printed when it has ended. The exit code is the command's; 125 means that it could not be run.",
		Example:           examples("berth exec web -- cat /etc/hostname", "berth exec --timeout 10s web sh -c 'ls /proc | wc -l'"),
		Args:              atLeast(1),
		ValidArgsFunction: a.completeFirst(runningContainers),
	}
	cmd.Flags().SetInterspersed(false)
	ownExitCode(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "kill the command after this time")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return ours(a.with(func(c *client) error { return c.exec(cmd, args[0], command(args[1:]), timeout) }))
	}
	return cmd
}

// command is what follows a name on the command line, with or without a -- between.
func command(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

func (c *client) exec(cmd *cobra.Command, word string, argv []string, timeout time.Duration) error {
	if len(argv) == 0 {
		return errors.New("say which command to run: berth exec CONTAINER COMMAND")
	}
	id, err := c.container(cmd.Context(), word)
	if err != nil {
		return err
	}
	seconds := int64((timeout + time.Second - 1) / time.Second)
	resp, err := c.ExecSync(cmd.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: argv, Timeout: seconds})
	if err != nil {
		return err
	}
	if _, err := cmd.OutOrStdout().Write(resp.GetStdout()); err != nil {
		return err
	}
	if _, err := cmd.ErrOrStderr().Write(resp.GetStderr()); err != nil {
		return err
	}
	if code := int(resp.GetExitCode()); code != 0 {
		return &exitError{code: code}
	}
	return nil
}
