package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// The commands here are others of Berth under the names that Docker, nerdctl and crictl have for them.

// historyCommand is berth image history.
func historyCommand(a *app) *cobra.Command {
	cmd := imageHistoryCommand(a)
	cmd.Example = examples("berth history nginx")
	return cmd
}

// saveCommand is berth image export.
func saveCommand(a *app) *cobra.Command {
	cmd := imageExportCommand(a)
	cmd.Use, cmd.Example = "save [flags] IMAGE...", examples("berth save -o app.tar docker.io/library/nginx:latest")
	cmd.DisableFlagsInUseLine = true
	return cmd
}

// loadCommand is berth image import.
func loadCommand(a *app) *cobra.Command {
	cmd := imageImportCommand(a)
	var input string
	cmd.Use, cmd.Example = "load [-i FILE]", examples("berth load -i app.tar", "docker save app:v1 | berth load")
	cmd.DisableFlagsInUseLine = true
	cmd.Flags().StringVarP(&input, "input", "i", "-", "`file` to read; - is standard input")
	cmd.Flags().BoolP("quiet", "q", false, "show no progress")
	_ = cmd.Flags().MarkHidden("quiet")
	cmd.Args = takes(0, 1)
	load := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			args = []string{input}
		}
		if args[0] == "-" && terminalOf(cmd.InOrStdin()) != nil {
			return errors.New("an archive is not typed: use -i FILE, or pipe one in")
		}
		return load(cmd, args)
	}
	return cmd
}

// containerCommand and podCommand are the groups in which Docker and nerdctl have the same commands.
func containerCommand(a *app) *cobra.Command {
	return grouped("container", "The commands about containers, as Docker groups them", a.psCommand(), a.runCommand(),
		a.execCommand(), a.attachCommand(), a.logsCommand(), a.stopCommand(), startCommand(a),
		restartCommand(a), cpCommand(a), a.rmCommand(), killCommand(a), waitCommand(a),
		updateCommand(a),
		portCommand(a), a.statsCommand(), a.topCommand(), a.inspectCommand(), pruneContainersCommand(a))
}

func podCommand(a *app) *cobra.Command {
	list := a.podsCommand()
	list.Use, list.Aliases = "ls", []string{"list", "ps"}
	inspect := a.inspectCommand()
	show := inspect.RunE
	inspect.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cmd.Flags().Set("type", kindPod); err != nil {
			return err
		}
		return show(cmd, args)
	}
	rm := rmpCommand(a)
	rm.Use = "rm POD..."
	return grouped("pod", "The commands about pods, as Podman groups them", list, inspect, rm, a.stopCommand(),
		a.logsCommand())
}

func systemCommand(a *app) *cobra.Command {
	df, prune := imageDuCommand(a), imagePruneCommand(a)
	df.Use, prune.Use = "df", "prune"
	prune.Long += " Containers that have ended are for berth container prune."
	prune.Flags().Bool("volumes", false, "volumes, too, which go with their containers anyway")
	_ = prune.Flags().MarkHidden("volumes")
	return grouped("system", "The commands about the node, as Docker groups them", infoCommand(a),
		eventsCommand(a), df, prune)
}

// grouped is a command that has others, whose examples are those of the same commands outside.
func grouped(name, text string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: text, DisableFlagsInUseLine: true, Args: subcommand, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, c := range commands {
		c.Example = ""
		cmd.AddCommand(c)
	}
	return cmd
}
