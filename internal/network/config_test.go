package network

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// inspected wants Inspect say the same of a directory as a load of it.
func inspected(t *testing.T, dir string, pluginDirs []string, conf *netconf, loaded error) {
	t.Helper()
	in, err := Inspect(dir, pluginDirs)
	var missing *MissingPluginError
	switch {
	case errors.As(loaded, &missing):
		if err != nil || !slices.Contains(in.Missing, missing.Plugin) {
			t.Errorf("inspected: %+v, %v", in, err)
		}
	case loaded != nil:
		if err == nil || err.Error() != loaded.Error() {
			t.Errorf("inspected: %v, loaded: %v", err, loaded)
		}
	case err != nil || in.Name != conf.Name || in.File != conf.File || len(in.Missing) > 0 ||
		!slices.Equal(in.MissingIPAM, conf.missingIPAM(pluginDirs)):
		t.Errorf("inspected: %+v, %v", in, err)
	}
}

func TestLoad(t *testing.T) {
	plugins := t.TempDir()
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		if err := os.WriteFile(filepath.Join(plugins, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(plugins, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const good = `{"cniVersion": "1.0.0", "name": "good", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}`
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string // name, version and plugins of the network, or what the error has in it
	}{
		{"list", map[string]string{"10-a.conflist": good}, "good 1.0.0 bridge+host-local portmap"},
		{"single", map[string]string{"10-a.conf": `{"cniVersion": "0.3.1", "name": "one", "type": "bridge"}`},
			"one 0.3.1 bridge"},
		{"single as json", map[string]string{"10-a.json": `{"name": "one", "type": "bridge"}`}, "one 0.1.0 bridge"},
		{"list called conf", map[string]string{"10-a.conf": good}, "good 1.0.0 bridge+host-local portmap"},
		{"first by name", map[string]string{"20-b.conflist": good, "10-a.conf": `{"name": "one", "type": "bridge"}`},
			"one 0.1.0 bridge"},
		{"several versions",
			map[string]string{
				"1.conflist": `{"cniVersions": ["0.4.0", "1.0.0", "9.0.0"], "name": "v", "plugins": [{"type": "bridge"}]}`},
			"v 1.0.0 bridge"},
		{"plugins beside", map[string]string{
			"1.conflist":    `{"cniVersion": "1.1.0", "name": "split", "plugins": [{"type": "bridge"}]}`,
			"split/10.conf": `{"type": "portmap"}`,
		}, "split 1.1.0 bridge portmap"},
		{"an ipam that runs elsewhere",
			map[string]string{"10-a.conflist": `{"name": "x", "plugins": [{"type": "bridge", "ipam": {"type": "dhcp"}}]}`},
			"x 0.1.0 bridge+dhcp"},
		{"others are left alone",
			map[string]string{".10-a.conflist": "{", "10-a.conflist~": "{", "README": "x", "5-dir.conflist/x": "",
				"20.conflist": good}, "good 1.0.0 bridge+host-local portmap"},

		{"empty", nil, "/net.d has no *.conflist, *.conf or *.json file"},
		{"not json", map[string]string{"10-a.conflist": "{\n  \"name\": \"x\",\n  plugins\n}", "20.conflist": good},
			"/net.d/10-a.conflist: line 3, column 3: invalid character 'p'"},
		{"cut short", map[string]string{"10-a.conflist": good[:40]}, "10-a.conflist: line 1, column 40: unexpected end of " +
			"JSON input"},
		{"empty file", map[string]string{"10-a.conflist": ""}, "10-a.conflist: line 1, column 1: unexpected end of " +
			"JSON input"},
		{"wrong type", map[string]string{"10-a.conflist": "{\"name\": \"x\",\n \"plugins\": 3}"}, "10-a.conflist: line 2"},
		{"no name", map[string]string{"10-a.conflist": `{"plugins": [{"type": "bridge"}]}`}, "10-a.conflist: "},
		{"bad name", map[string]string{"10-a.conflist": `{"name": "a/b", "plugins": [{"type": "bridge"}]}`},
			"10-a.conflist: its name: "},
		{"no plugins", map[string]string{"10-a.conflist": `{"name": "x"}`}, "10-a.conflist: it lists no plugins"},
		{"no type", map[string]string{"10-a.conflist": `{"name": "x", "plugins": [{}]}`}, "missing 'type'"},
		{"version of the future",
			map[string]string{"10-a.conflist": `{"cniVersion": "2.0.0", "name": "x", "plugins": [{"type": "bridge"}]}`},
			`its cniVersion "2.0.0" is none of those known here: 0.1.0`},
		{"no such plugin", map[string]string{"10-a.conflist": `{"name": "x", "plugins": [{"type": "calico"}]}`},
			`10-a.conflist: network "x": CNI plugin "calico" is not an executable file in /nonexistent or ` + plugins},
		{"not executable", map[string]string{"10-a.conflist": `{"name": "x", "plugins": [{"type": "plain"}]}`},
			`CNI plugin "plain" is not`},
		{"a path", map[string]string{"10-a.conflist": `{"name": "x", "plugins": [{"type": "../bridge"}]}`},
			"must be a file name"},
		{"bad beside", map[string]string{"1.conflist": `{"name": "split"}`, "split/10.conf": "{"}, "split/10.conf: line 1"},
		{"too large", map[string]string{"10-a.conflist": strings.Repeat(" ", int(limit.CNIConfig.Limit)+1)},
			"size of a CNI configuration: more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "net.d")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range c.files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			conf, err := load(dir, []string{"/nonexistent", plugins})
			inspected(t, dir, []string{"/nonexistent", plugins}, conf, err)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v", err)
				}
				return
			}
			got := conf.Name + " " + conf.Version
			for _, p := range conf.Plugins {
				if got += " " + p.Type; p.IPAM != "" {
					got += "+" + p.IPAM
				}
			}
			if got != c.want {
				t.Errorf("got %s", got)
			}
		})
	}
	if _, err := load("/nonexistent/net.d", nil); err == nil ||
		!strings.Contains(err.Error(), "directory /nonexistent/net.d does not exist") {
		t.Errorf("%v", err)
	}
	fifo := filepath.Join(t.TempDir(), "1.conf")
	output(t, "mkfifo", fifo)
	if _, err := load(filepath.Dir(fifo), nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
}

const cidrTemplate = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "ipam": {"type": "host-local",
"ranges": [{{range $i, $r := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$r}}"}]{{end}}],
"routes": [{{range $i, $r := .Routes}}{{if $i}}, {{end}}{"dst": "{{$r}}"}{{end}}]}}]}`

func TestSetPodCIDR(t *testing.T) {
	file := filepath.Join(t.TempDir(), "template")
	if err := os.WriteFile(file, []byte(cidrTemplate), 0o644); err != nil {
		t.Fatal(err)
	}
	var dirty []string
	h := newHost(t, "", func(c *Config) { c.Template, c.Dirty = file, func(p string) { dirty = append(dirty, p) } })
	written := filepath.Join(h.cfg.ConfigDir, templated)
	for _, bad := range []string{"10.1.0.0", "10.1.0.0/33", "x", "10.1.0.0/16,", "10.1.0.0/16;fd00::/64",
		"::ffff:10.0.0.0/104", ","} {
		if _, ok := asCIDRError(h.SetPodCIDR(bad)); !ok {
			t.Errorf("took %q", bad)
		}
	}
	if entries, _ := os.ReadDir(h.cfg.ConfigDir); len(entries) > 0 {
		t.Errorf("wrote %v", entries)
	}
	if err := h.SetPodCIDR(""); err != nil {
		t.Error(err)
	}
	if err := h.SetPodCIDR("10.1.2.3/16, fd00::/64"); err != nil {
		t.Fatal(err)
	}
	h.eventually(t, "pods")
	text, _ := os.ReadFile(written)
	for _, want := range []string{`[[{"subnet": "10.1.0.0/16"}]`, `[{"subnet": "fd00::/64"}]]`,
		`{"dst": "0.0.0.0/0"}, {"dst": "::/0"}`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if strings.Join(dirty, " ") != written {
		t.Errorf("dirty: %v", dirty)
	}
	before, _ := os.Stat(written)
	if err := h.SetPodCIDR("10.1.0.0/16,fd00::/64"); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(written); !os.SameFile(before, after) {
		t.Error("wrote what was there")
	}
	if err := h.SetPodCIDR("10.2.0.0/16"); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(written); !strings.Contains(string(text), "10.2.0.0/16") ||
		strings.Contains(string(text), "fd00") {
		t.Errorf("not replaced: %s", text)
	}
	h.write("05-other.conflist", `{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}`)
	if err := h.SetPodCIDR("10.3.0.0/16"); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(written); strings.Contains(string(text), "10.3.0.0/16") {
		t.Error("wrote beside a configuration of somebody else")
	}
}

func TestBadTemplates(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"{{.PodCIDR", "unclosed action"},
		{"{{.Nothing}}", "can't evaluate field Nothing"},
		{"{", "makes no CNI configuration: line 1"},
	} {
		file := filepath.Join(t.TempDir(), "template")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		h := newHost(t, "", func(cfg *Config) { cfg.Template = file })
		if err := h.SetPodCIDR("10.1.0.0/16"); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", c.text, err)
		}
		if entries, _ := os.ReadDir(h.cfg.ConfigDir); len(entries) > 0 {
			t.Errorf("wrote %v", entries)
		}
	}
	h := newHost(t, "", func(cfg *Config) { cfg.Template = "/nonexistent" })
	if err := h.SetPodCIDR("10.1.0.0/16"); err == nil {
		t.Error("no template, no error")
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	h = newHost(t, "", func(cfg *Config) { cfg.Template = fifo }) // which a plain open would wait for
	if err := h.SetPodCIDR("10.1.0.0/16"); !errors.Is(err, limit.ErrNotRegular) {
		t.Errorf("a FIFO: %v", err)
	}
	h = newHost(t, "")
	if err := h.SetPodCIDR("10.1.0.0/16"); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(h.cfg.ConfigDir); len(entries) > 0 {
		t.Errorf("wrote %v without a template", entries)
	}
}
