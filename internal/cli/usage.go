package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// examples is how cobra wants the examples of a command.
func examples(lines ...string) string { return "  " + strings.Join(lines, "\n  ") }

// exactly and atLeast are how many arguments a command takes.
func exactly(n int) cobra.PositionalArgs { return takes(n, n) }

func atLeast(n int) cobra.PositionalArgs { return takes(n, -1) }

func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return cmd.FlagErrorFunc()(cmd, fmt.Errorf("an argument is missing: %s", cmd.UseLine()))
		case most >= 0 && len(args) > most:
			return cmd.FlagErrorFunc()(cmd, fmt.Errorf("%q is too much: %s", args[most], cmd.UseLine()))
		}
		return nil
	}
}

// wrongUse says where to read what a command takes.
func wrongUse(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}

// ownExitCode makes a wrong use of cmd, too, end with the exit code that no container has.
func ownExitCode(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return ours(wrongUse(cmd, err)) })
}
