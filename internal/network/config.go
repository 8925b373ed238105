package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"berth/internal/fail"
	"berth/internal/limit"
)

// netconf is a CNI network configuration with all its plugins in it, as it was when it was read. It is part of the
// record of an attachment.
type netconf struct {
	File         string   `json:"file"`
	Name         string   `json:"name"`
	Version      string   `json:"version"`
	DisableCheck bool     `json:"disableCheck,omitempty"`
	Plugins      []plugin `json:"plugins"`
}

// plugin is one of a list: what is used of its configuration, and all of it.
type plugin struct {
	Type         string          `json:"type"`
	IPAM         string          `json:"ipam,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
	Raw          json.RawMessage `json:"raw"`
}

// can reports whether any plugin of the list takes that capability's argument.
func (c *netconf) can(capability string) bool {
	return slices.ContainsFunc(c.Plugins, func(p plugin) bool { return p.Capabilities[capability] })
}

// capabilities are those that any plugin of the list has, sorted.
func (c *netconf) capabilities() (names []string) {
	for _, p := range c.Plugins {
		for name, has := range p.Capabilities {
			if has && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// atLeast compares the version of the CNI specification that the configuration speaks.
func (c *netconf) atLeast(v string) bool {
	ok, err := version.GreaterThanOrEqualTo(c.Version, v)
	return ok && err == nil
}

// ErrNoConfig says that a directory has no configuration, which is how a fresh node begins.
var ErrNoConfig = errors.New("no CNI configuration")

// load reads the configuration in force, whose plugins must be there.
func load(dir string, pluginDirs []string) (*netconf, error) {
	conf, err := read(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range conf.Plugins {
		if _, err := find(p.Type, pluginDirs); err != nil {
			return nil, fmt.Errorf("%s: network %q: %w", conf.File, conf.Name, err)
		}
	}
	return conf, nil
}

// read reads the configuration in force: the first file by name. A first file that is bad is an error, and not a reason
// to attach pods to another network.
func read(dir string) (*netconf, error) {
	file, err := first(dir)
	if err != nil {
		return nil, err
	}
	conf, err := parseFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return conf, nil
}

// Configured is what a daemon finds in a directory of CNI configurations.
type Configured struct {
	File, Name string // the configuration in force, and the network's name
	// Missing are plugins of the network that are in none of the plugin directories; MissingIPAM are the programs that
	// ipam sections name, likewise.
	Missing, MissingIPAM []string
}

// Inspect looks at what a daemon would take, and does nothing else. The error is ErrNoConfig where there is none.
func Inspect(dir string, pluginDirs []string) (*Configured, error) {
	conf, err := read(dir)
	if err != nil {
		return nil, err
	}
	c := &Configured{File: conf.File, Name: conf.Name, MissingIPAM: conf.missingIPAM(pluginDirs)}
	for _, p := range conf.Plugins {
		_, err := find(p.Type, pluginDirs)
		switch {
		case err != nil && !fail.As[*MissingPluginError](err):
			return nil, fmt.Errorf("%s: network %q: %w", conf.File, conf.Name, err)
		case err != nil && !slices.Contains(c.Missing, p.Type):
			c.Missing = append(c.Missing, p.Type)
		}
	}
	return c, nil
}

// missingIPAM are the programs that ipam sections name and that are not on the node. The network is usable all the
// same: whether and where a program is run by the section is the matter of the plugin that gets it, and that of Antrea
// runs it in its agent's pod.
func (c *netconf) missingIPAM(pluginDirs []string) (names []string) {
	for _, p := range c.Plugins {
		if p.IPAM == "" || slices.Contains(names, p.IPAM) {
			continue
		}
		if _, err := find(p.IPAM, pluginDirs); err != nil {
			names = append(names, p.IPAM)
		}
	}
	return names
}

func first(dir string) (string, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: directory %s does not exist", ErrNoConfig, dir)
	}
	if err != nil {
		return "", fmt.Errorf("read the CNI configuration: %w", err)
	}
	for _, e := range entries {
		if isConfig(e.Name()) && !e.IsDir() {
			return filepath.Join(dir, e.Name()), nil
		}
	}
	return "", fmt.Errorf("%w: directory %s has no *.conflist, *.conf or *.json file", ErrNoConfig, dir)
}

// isConfig reports whether a file of that name is a configuration. Hidden ones are what editors and installers work on.
func isConfig(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(name))
}

func parseFile(file string) (*netconf, error) {
	data, err := limit.ReadFile(file, limit.CNIConfig)
	if err != nil {
		return nil, err
	}
	return parse(file, data)
}

// header is what is read of a configuration apart from its plugins.
type header struct {
	Type    string            `json:"type"`
	Plugins []json.RawMessage `json:"plugins"`
}

// parse takes a list of plugins, or a single plugin as lists were before they were lists.
func parse(file string, data []byte) (*netconf, error) {
	var h header
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, locate(data, err)
	}
	if h.Plugins == nil && h.Type != "" {
		h.Plugins = []json.RawMessage{data}
		var err error
		if data, err = asList(data); err != nil {
			return nil, err
		}
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	conf := &netconf{File: file, Name: list.Name, Version: list.CNIVersion, DisableCheck: list.DisableCheck}
	if !list.LoadOnlyInlinedPlugins {
		beside, err := pluginFiles(filepath.Join(filepath.Dir(file), list.Name), list.Name)
		if err != nil {
			return nil, err
		}
		h.Plugins = append(h.Plugins, beside...)
	}
	if err := conf.addPlugins(h.Plugins); err != nil {
		return nil, err
	}
	return conf, conf.validate()
}

// asList makes a list of a single plugin's configuration.
func asList(data []byte) ([]byte, error) {
	var one struct {
		Name    string          `json:"name"`
		Version string          `json:"cniVersion,omitempty"`
		Plugins json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &one); err != nil {
		return nil, locate(data, err)
	}
	one.Plugins = slices.Concat([]byte("["), data, []byte("]"))
	return json.Marshal(one)
}

// pluginFiles reads the plugins that a list has in a directory of its name, beside it.
func pluginFiles(dir, name string) ([]json.RawMessage, error) {
	if name == "" || !filepath.IsLocal(name) || strings.ContainsRune(name, '/') {
		return nil, nil
	}
	files, err := libcni.ConfFiles(dir, []string{".conf"})
	if err != nil {
		return nil, err
	}
	var plugins []json.RawMessage
	for _, file := range files {
		data, err := limit.ReadFile(file, limit.CNIConfig)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if !json.Valid(data) {
			return nil, fmt.Errorf("%s: %w", file, locate(data, json.Unmarshal(data, new(any))))
		}
		plugins = append(plugins, data)
	}
	return plugins, nil
}

func (c *netconf) addPlugins(raw []json.RawMessage) error {
	for i, data := range raw {
		parsed, err := libcni.NetworkPluginConfFromBytes(data)
		if err != nil {
			return fmt.Errorf("plugin %d: %w", i+1, err)
		}
		c.Plugins = append(c.Plugins, plugin{
			Type: parsed.Network.Type, IPAM: parsed.Network.IPAM.Type, Capabilities: parsed.Network.Capabilities, Raw: data,
		})
	}
	return nil
}

func (c *netconf) validate() error {
	if err := utils.ValidateNetworkName(c.Name); err != nil {
		return fmt.Errorf("its name: %w", err)
	}
	if len(c.Plugins) == 0 {
		return errors.New("it lists no plugins")
	}
	known := version.All.SupportedVersions()
	if c.Version == "" {
		c.Version = known[0]
	}
	if !slices.Contains(known, c.Version) {
		return fmt.Errorf("its cniVersion %q is none of those known here: %s", c.Version, strings.Join(known, ", "))
	}
	return nil
}

// locate adds line and column to an error of encoding/json that has an offset.
func locate(data []byte, err error) error {
	var syntax *json.SyntaxError
	var mistyped *json.UnmarshalTypeError
	var offset int64
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &mistyped):
		offset = mistyped.Offset
	default:
		return err
	}
	before := data[:min(max(offset-1, 0), int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

// equal reports whether two configurations are the same, byte for byte in what plugins read.
func (c *netconf) equal(d *netconf) bool {
	return c.File == d.File && c.Name == d.Name && c.Version == d.Version && c.DisableCheck == d.DisableCheck &&
		slices.EqualFunc(c.Plugins, d.Plugins, func(p, q plugin) bool { return bytes.Equal(p.Raw, q.Raw) })
}

// sources are paths that the configuration depends on, beside its directory: the file in force, which may be a symbolic
// link, and the directory of its network's name.
func sources(dir string) []string {
	file, err := first(dir)
	if err != nil {
		return nil
	}
	paths := []string{file}
	data, err := limit.ReadFile(file, limit.CNIConfig)
	if err != nil {
		return paths
	}
	var named struct{ Name string }
	if json.Unmarshal(data, &named) == nil && named.Name != "" && !strings.ContainsRune(named.Name, '/') {
		paths = append(paths, filepath.Join(dir, named.Name))
	}
	return paths
}
