package cli

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/config"
)

// explainCommand tells of the keys of the configuration, without a daemon.
func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain [KEY]", Short: "Explain a key of the configuration, or list all keys", Args: takes(0, 1),
		Long: "Explain a key of the configuration: its purpose, the values that it takes, its default, and " +
			"whether a reload puts a new value in force. Without a key, list all of them.",
		Example: examples("berth config explain images.max_layers", "berth config explain runtimes.runc.path"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, k := range config.Keys() {
				names = append(names, k.Name)
			}
			if len(args) > 0 {
				names = nil
			}
			return among(names, args, prefix), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return listKeys(stdout(cmd))
		}
		return explainKey(stdout(cmd), args[0])
	}
	return cmd
}

func listKeys(w io.Writer) error {
	for _, k := range config.Keys() {
		if _, err := fmt.Fprintln(w, k.Name); err != nil {
			return err
		}
	}
	return nil
}

// ofHandler is the name of a key of some handler.
var ofHandler = regexp.MustCompile(`^runtimes\.[^.]+\.`)

func explainKey(w io.Writer, name string) error {
	general := ofHandler.ReplaceAllLiteralString(name, "runtimes.<name>.")
	for _, k := range config.Keys() {
		if k.Name != general {
			continue
		}
		standard := cmp.Or(strings.Trim(k.Default, `"`), k.Unset, "none")
		reload := "needs a restart of the daemon"
		if k.Live {
			reload = "is taken over by `berth reload`, for what begins after it"
		}
		_, err := fmt.Fprintf(w, "%s\n\n  %s.\n\n  value:    %s\n  default:  %s\n  a change: %s\n", name, plain(k.Meaning),
			k.Kind, standard, reload)
		return err
	}
	return fmt.Errorf("there is no key %q: `berth config explain` lists all", name)
}

// link is one of Markdown.
var link = regexp.MustCompile(`\[([^\]]*)\]\(([^)#]*)[^)]*\)`)

// plain is Markdown for a terminal: a link is its text and where it leads.
func plain(markdown string) string { return link.ReplaceAllString(markdown, "$1 (docs/$2)") }
