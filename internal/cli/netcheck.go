package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/config"
	"berth/internal/limit"
)

// diagnoseNetwork looks at the CNI configuration that a daemon would take, and at the plugins that it names.
// On a node of a cluster a network add-on brings it, whose pods use the node's own network.
func diagnoseNetwork(c config.CNI, node bool) []diagnosis {
	const without = "pods with --net host run without one"
	file, err := firstNetwork(c.ConfigDir)
	if err != nil {
		return []diagnosis{{"network", broken, err.Error(), "make the directory readable"}}
	}
	if file == "" && node {
		return []diagnosis{{"network", warning, "there is no CNI configuration in " + c.ConfigDir + " yet",
			"a network add-on of the cluster writes one, and its own pods need none; until then the node is NotReady"}}
	}
	if file == "" {
		return []diagnosis{{"network", broken, "there is no CNI configuration in " + c.ConfigDir,
			"install a network add-on, or write a file there: docs/quickstart.md has one to start with; " + without}}
	}
	list, err := loadNetwork(file)
	if err != nil {
		return []diagnosis{{"network", broken, fmt.Sprintf("%s: %v", file, err), "mend or remove the file; " + without}}
	}
	found := []diagnosis{{"network", fine, fmt.Sprintf("%s, of %s", list.Name, file), ""}}
	const install = `install them: "apt-get install containernetworking-plugins" has the usual ones`
	types, ipams := list.programs()
	if missing := missingPlugins(types, c.PluginDirs); missing != "" {
		found = append(found, diagnosis{"network plugins", broken, missing, install})
	}
	// The plugin that gets an ipam section runs its program, and may run it elsewhere.
	if missing := missingPlugins(ipams, c.PluginDirs); missing != "" {
		found = append(found, diagnosis{"network addresses", warning, missing + ", which an ipam section names",
			"if pods get no address, " + install + "; a network add-on may run its own elsewhere, as Antrea does"})
	}
	return found
}

// missingPlugins says which programs are not there, "" when all are.
func missingPlugins(names, dirs []string) string {
	var missing []string
	for _, name := range names {
		if name != "" && !hasPlugin(name, dirs) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("%s is not in %s", strings.Join(missing, ", "), strings.Join(dirs, " or "))
}

// firstNetwork is the file in force: the first by name.
func firstNetwork(dir string) (string, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil && !absent(err) {
		return "", err
	}
	for _, e := range entries {
		usable := slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name()))
		if usable && !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			return filepath.Join(dir, e.Name()), nil
		}
	}
	return "", nil
}

// networkFile is what the doctor reads of a configuration: a list of plugins, or one alone.
type networkFile struct {
	Name    string
	Plugins []networkPlugin
	networkPlugin
}

type networkPlugin struct {
	Type string
	IPAM struct{ Type string }
}

// programs are the plugins of the network, which have to be installed, and those that their ipam sections name; "" is
// none.
func (n *networkFile) programs() (types, ipams []string) {
	for _, p := range append(n.Plugins, n.networkPlugin) {
		types, ipams = append(types, p.Type), append(ipams, p.IPAM.Type)
	}
	return types, ipams
}

func loadNetwork(path string) (*networkFile, error) {
	data, err := limit.ReadFile(path, limit.CNIConfig)
	if err != nil {
		return nil, err
	}
	list := new(networkFile)
	if err := json.Unmarshal(data, list); err != nil {
		return nil, fmt.Errorf("it is not JSON for CNI: %w", err)
	}
	if filepath.IsLocal(list.Name) && !strings.ContainsRune(list.Name, '/') {
		// A list may have plugins in a directory of its name.
		files, _ := filepath.Glob(filepath.Join(filepath.Dir(path), list.Name, "*.conf"))
		for _, file := range files {
			data, err := limit.ReadFile(file, limit.CNIConfig)
			if err != nil {
				return nil, err
			}
			var p networkPlugin
			if err := json.Unmarshal(data, &p); err != nil {
				return nil, fmt.Errorf("%s is not JSON for CNI: %w", file, err)
			}
			list.Plugins = append(list.Plugins, p)
		}
	}
	if types, _ := list.programs(); !slices.ContainsFunc(types, func(name string) bool { return name != "" }) {
		return nil, errors.New("it names no plugin")
	}
	return list, nil
}

func hasPlugin(name string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	})
}
