package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"berth/internal/admin"
)

func versionCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the versions of this command and of the daemon", Args: exactly(0)}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error {
			v := struct {
				Client string `json:"client"`
				Daemon string `json:"daemon,omitempty"`
			}{Client: a.version}
			info, err := c.node.Info(cmd.Context())
			if err == nil {
				v.Daemon = info.Version
			} else if !isCode(err, codes.Unavailable) {
				return err
			}
			if *format == formatJSON {
				return printJSON(stdout(cmd), v)
			}
			if v.Daemon == "" {
				v.Daemon = "- (" + err.Error() + ")"
			}
			_, err = fmt.Fprintf(stdout(cmd), "berth   %s\ndaemon  %s\n", v.Client, v.Daemon)
			return err
		})
	}
	return cmd
}

func checkCommand(a *app) *cobra.Command {
	var req admin.CheckRequest
	cmd := &cobra.Command{
		Use: "check", Short: "Verify every record and every file of every image", Args: exactly(0),
		Long: "Verify every record and every file of every image layer. The exit code is 0 if nothing is wrong, " +
			"or if everything was repaired.",
	}
	cmd.Flags().BoolVar(&req.Repair, "repair", false, "mend images: fetch damaged layers again, remove records that "+
		"cannot be read; pods are left alone")
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error { return c.check(cmd, &req, *format) })
	}
	return cmd
}

func (c *client) check(cmd *cobra.Command, req *admin.CheckRequest, format string) error {
	found := []admin.Finding{}
	err := c.node.Check(cmd.Context(), req, func(f admin.Finding) {
		found = append(found, f)
		if format == formatTable {
			fmt.Fprintln(stdout(cmd), findingText(f))
		}
	})
	if err != nil {
		return err
	}
	if format == formatJSON {
		if err := printJSON(stdout(cmd), found); err != nil {
			return err
		}
	}
	wrong := 0
	for _, f := range found {
		if !f.Repaired {
			wrong++
		}
	}
	switch {
	case wrong > 0 && req.Repair:
		return fmt.Errorf("%d of %d findings could not be repaired", wrong, len(found))
	case wrong > 0:
		return fmt.Errorf("findings: %d; berth check --repair mends what can be mended", wrong)
	case format == formatTable && len(found) == 0:
		_, err = fmt.Fprintln(stdout(cmd), "nothing is wrong")
	}
	return err
}

func findingText(f admin.Finding) string {
	var about []string
	for _, x := range []struct{ kind, id string }{{"image", f.Image}, {"layer", f.Layer}, {"pod", f.Pod}} {
		if x.id != "" {
			about = append(about, x.kind+" "+short(x.id))
		}
	}
	if f.Path != "" {
		about = append(about, f.Path)
	}
	text := f.Problem
	if len(about) > 0 {
		text = strings.Join(about, ", ") + ": " + text
	}
	if f.Repaired {
		text += " (repaired)"
	}
	return text
}
