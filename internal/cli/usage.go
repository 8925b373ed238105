package cli

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/fail"
)

// finish gives cmd, and what is below it, what all commands have: a help that fits a terminal, no files that a shell
// offers where no argument is taken, and a failure where the result cannot be printed.
func finish(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		finish(c)
	}
	cmd.Long = wrap(cmd.Long)
	if cmd.RunE != nil {
		cmd.RunE = tellsOfLoss(cmd.RunE)
	}
	if cmd.Args != nil && cmd.ValidArgsFunction == nil && cmd.Args(cmd, []string{"x"}) != nil &&
		cmd.Args(cmd, nil) == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
}

// wrap breaks the paragraphs of a text into lines that fit the narrowest terminal that is usual.
func wrap(text string) string {
	const most = 80
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		var b strings.Builder
		width := 0
		for _, word := range strings.Fields(p) {
			n := utf8.RuneCountInString(word)
			switch {
			case width == 0:
			case width+1+n > most:
				b.WriteByte('\n')
				width = 0
			default:
				b.WriteByte(' ')
				width++
			}
			b.WriteString(word)
			width += n
		}
		paragraphs[i] = b.String()
	}
	return strings.Join(paragraphs, "\n\n")
}

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
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 { // the flag is of a command that is not there
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			return subcommand(cmd, cmd.Flags().Args())
		}
	}
	if advice := foreignFlag(cmd, err); advice != "" {
		return fail.New(errdefs.ErrInvalidArgument, "%w: %s", err, advice)
	}
	return fail.New(errdefs.ErrInvalidArgument, "%w; see %s --help", err, cmd.CommandPath())
}

// ownExitCode makes a wrong use of cmd, too, end with the exit code that no container has.
func ownExitCode(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return ours(wrongUse(cmd, err)) })
}
