package cli

import (
	"errors"
	"fmt"
	"strings"

	"berth/internal/config"
	"berth/internal/network"
)

// diagnoseNetwork looks at the CNI configuration that a daemon would take, and at the plugins that it names.
// On a node of a cluster a network add-on brings it, whose pods use the node's own network.
func diagnoseNetwork(c config.CNI, node bool) []diagnosis {
	const without = "pods with --net host run without one"
	in, err := network.Inspect(c.ConfigDir, c.PluginDirs)
	switch {
	case errors.Is(err, network.ErrNoConfig) && node:
		return []diagnosis{{"network", warning, "there is no CNI configuration in " + c.ConfigDir + " yet",
			"a network add-on of the cluster writes one, and its own pods need none; until then the node is NotReady"}}
	case errors.Is(err, network.ErrNoConfig):
		return []diagnosis{{"network", broken, "there is no CNI configuration in " + c.ConfigDir,
			"install a network add-on, or write a file there: docs/quickstart.md has one to start with; " + without}}
	case err != nil:
		return []diagnosis{{"network", broken, err.Error(), "mend it, or remove the file; " + without}}
	}
	found := []diagnosis{{"network", fine, fmt.Sprintf("%s, of %s", in.Name, in.File), ""}}
	const install = `install them: "apt-get install containernetworking-plugins" has the usual ones`
	if len(in.Missing) > 0 {
		found = append(found, diagnosis{"network plugins", broken, missingPlugins(in.Missing, c.PluginDirs), install})
	}
	// The plugin that gets an ipam section runs its program, and may run it elsewhere.
	if len(in.MissingIPAM) > 0 {
		found = append(found, diagnosis{"network addresses", warning,
			missingPlugins(in.MissingIPAM, c.PluginDirs) + ", which an ipam section names",
			"if pods get no address, " + install + "; a network add-on may run its own elsewhere, as Antrea does"})
	}
	return found
}

// missingPlugins says which programs are not there.
func missingPlugins(names, dirs []string) string {
	return fmt.Sprintf("%s is not in %s", strings.Join(names, ", "), strings.Join(dirs, " or "))
}
