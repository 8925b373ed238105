package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/admin"
)

func pullsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pulls", Short: "Show the pulls under way", Args: exactly(0),
		Long: "Show the pulls under way, those of a kubelet, too: the progress, the rate, the host that sends, " +
			"and for how long it has been going on. The state of a pull that waits for its turn is waiting. " +
			"With -o json each layer is listed.",
		Example: examples("berth pulls", "watch -n1 berth pulls"),
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error {
			pulls, err := c.node.Pulls(cmd.Context())
			if err != nil {
				return err
			}
			if *format == formatJSON {
				return printJSON(stdout(cmd), pulls)
			}
			return pullsTable(pulls, time.Now()).print(stdout(cmd))
		})
	}
	return cmd
}

func pullsTable(pulls []admin.Underway, now time.Time) *table {
	t := newTable("IMAGE", "STATE", "DONE", "RATE", "LAYERS", "FROM", "POD", "FOR")
	for _, p := range pulls {
		t.add(p.Reference, p.Phase, doneText(p.Done, p.Total), rateText(p.Rate), layersText(p.Layers),
			cmp.Or(strings.Join(p.Hosts, " "), "-"), podText(p), span(max(now.Sub(p.Began), time.Second)))
	}
	return t
}

// doneText says how much is there: as far as is known.
func doneText(done, total int64) string {
	if total <= 0 {
		return "-"
	}
	done = min(max(done, 0), total)
	percent := int(float64(done) / float64(total) * 100)
	return fmt.Sprintf("%s / %s (%d %%)", bytesText(uint64(done)), bytesText(uint64(total)), percent)
}

func rateText(rate int64) string {
	if rate <= 0 {
		return "-"
	}
	return bytesText(uint64(rate)) + "/s"
}

// layersText counts the layers that are there.
func layersText(layers []admin.PullEvent) string {
	if len(layers) == 0 {
		return "-"
	}
	there := slices.DeleteFunc(slices.Clone(layers), func(l admin.PullEvent) bool {
		return l.Phase != "done" && l.Phase != "exists"
	})
	return fmt.Sprintf("%d/%d", len(there), len(layers))
}

// podText is the pod that an image is for.
func podText(p admin.Underway) string {
	if p.Pod == "" {
		return cmp.Or(p.Namespace, "-")
	}
	return p.Namespace + "/" + p.Pod
}
