package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestPageNamesEveryCommand wants docs/cli.md to have each command, and each flag of berth run.
func TestPageNamesEveryCommand(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range New("v-test").Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		if !strings.Contains(string(text), "| `berth "+c.Name()) {
			t.Errorf("the page has no row of berth %s", c.Name())
		}
		if c.Name() == "run" {
			_, section, _ := strings.Cut(string(text), "### berth run")
			missing(t, c, section)
		}
	}
}

// missing tells which flags a section of the page lacks, by their long or short names.
func missing(t *testing.T, c *cobra.Command, section string) {
	t.Helper()
	for _, f := range strings.Fields(strings.NewReplacer("`", " ", ",", " ").Replace(c.LocalFlags().FlagUsages())) {
		name, flag := strings.CutPrefix(f, "--")
		if !flag || name == "help" || name == "socket" {
			continue
		}
		short := c.Flags().Lookup(name)
		if short == nil || strings.Contains(section, "`--"+name+"`") ||
			short.Shorthand != "" && strings.Contains(section, "`-"+short.Shorthand+"`") {
			continue
		}
		t.Errorf("the page has no --%s of berth %s", name, c.Name())
	}
}
