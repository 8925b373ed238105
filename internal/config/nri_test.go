package config

import (
	"reflect"
	"strings"
	"testing"
)

// NRI is on where somebody says so and, unless somebody says otherwise, for the default instance.
func TestNRIEnabled(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "[nri]\nenable = false\n": false, "[nri]\nenable = true\n": true, "root = \"/r\"\n": false,
		"root = \"/r\"\n[nri]\nenable = true\n": true, "root = \"/r\"\n[nri]\nsocket = \"/r/nri.sock\"\n": false,
	} {
		c := load(t, text)
		if got := c.NRIEnabled(); got != want {
			t.Errorf("%q: %v", text, got)
		}
		if again := load(t, c.TOML()); !reflect.DeepEqual(again, c) {
			t.Errorf("%q: printed as\n%s", text, c.TOML())
		}
	}
	path := write(t, map[string]string{
		"config.toml": "[nri]\nenable = true\n", "conf.d/10.toml": "[nri]\nenable = false\n",
		"conf.d/20.toml": "log_level = \"debug\"\n",
	})
	if c, err := Load(Flags{Path: path, PathSet: true}); err != nil || c.NRIEnabled() {
		t.Errorf("a drop-in that turns it off: %v", err)
	}
}

// TestRequiredPlugins takes the names that validators compare with: with the index or without it, as containerd does.
func TestRequiredPlugins(t *testing.T) {
	const head = "[nri.validator]\nrequired_plugins = "
	if c := load(t, head+`["balloons", "a-b", "10-policy"]`); len(c.NRI.Validator.RequiredPlugins) != 3 {
		t.Errorf("%q", c.NRI.Validator.RequiredPlugins)
	}
	for _, bad := range []string{`["a", ""]`, `"a"`} {
		path := write(t, map[string]string{"config.toml": head + bad + "\n"})
		if _, err := Load(Flags{Path: path, PathSet: true}); err == nil ||
			!strings.Contains(err.Error(), "nri.validator.required_plugins") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
