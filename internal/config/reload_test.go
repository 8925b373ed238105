package config

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth/test/golden"
)

// A running daemon takes over what it can, keeps what it cannot, and says both.
func TestReload(t *testing.T) {
	old := load(t, "root = \"/a\"\nlog_level = \"warn\"\n[images]\nroot = \"/i\"\npinned = [\"x\"]\n[runtimes.gone]\n"+
		"path = \"/g\"\n")
	next := load(t, "root = \"/b\"\nlog_level = \"debug\"\n[images]\nroot = \"/i\"\npinned = [\"x\", \"y\"]\nmax_layers "+
		"= 7\n[runtimes.new]\npath = \"/n\"\ninit = true\n")
	got, changes := old.Reload(next)
	if got.Root != "/a" || got.LogLevel != "debug" || got.Images.MaxLayers != 7 || got.Images.Root != "/i" ||
		len(got.Runtimes.Handlers) != 1 || got.Runtimes.Handlers["new"].Path != "/n" {
		t.Errorf("in force: %+v", got)
	}
	var said []string
	for _, c := range changes {
		said = append(said, c.String())
	}
	want := []string{`images.max_layers: 500 → 7`, `images.pinned: ["x"] → ["x", "y"]`, `log_level: "warn" → "debug"`,
		`root: "/a" → "/b", after a restart`,
		`runtimes.gone.path: "/g" → (none)`, `runtimes.new.init: (none) → true`, `runtimes.new.path: (none) → "/n"`}
	if !slices.Equal(said, want) {
		t.Errorf("said\n%s\nwanted\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
	if again, more := got.Reload(next); len(more) != 1 || more[0].Key != "root" || again.Root != "/a" {
		t.Errorf("the same again: %v", more)
	}
	if same, none := old.Reload(old); len(none) != 0 || !reflect.DeepEqual(same, old) {
		t.Errorf("nothing new: %v", none)
	}
}

// TestReloadDecides has every key decided: who adds one says here whether a running daemon takes it over.
func TestReloadDecides(t *testing.T) {
	restart := []string{"root", "state", "socket", "log_format", "cgroup_driver", "cgroup_names",
		"cgroup_favor_dynmods", "crio_socket", "selinux", "apparmor", "images.root",
		"images.unpack", "images.unpacker", "monitor.path", "timeouts.create_abandon", "cdi.spec_dirs",
		"streaming.address", "streaming.port", "streaming.cert", "streaming.key", "streaming.idle_timeout", "metrics.address",
		"nri.enable", "nri.socket", "nri.plugin_dir", "nri.config_dir", "nri.registration_timeout", "nri.request_timeout",
		"nri.synchronization_timeout", "streaming.max_waiting", "streaming.max_sessions",
		"streaming.max_target_sessions", "images.gunzip", "limits.connections", "limits.calls", "limits.execs",
		"limits.pulls", "limits.memory", "nri.validator.enable", "nri.validator.required_plugins",
		"nri.validator.tolerate_missing_plugins_annotation", "nri.validator.reject_oci_hook_adjustment",
		"nri.validator.reject_namespace_adjustment", "nri.validator.reject_sysctl_adjustment",
		"nri.validator.reject_runtime_default_seccomp_adjustment",
		"nri.validator.reject_unconfined_seccomp_adjustment", "nri.validator.reject_custom_seccomp_adjustment"}
	for key := range Default().values() {
		if isLive(key) == slices.Contains(restart, key) {
			t.Errorf("%s: taken over by a running daemon: %v", key, isLive(key))
		}
	}
	for _, key := range restart {
		if _, ok := Default().values()[key]; !ok {
			t.Errorf("there is no key %s", key)
		}
	}
	on := load(t, "[nri]\nenable = true\n")
	if _, changes := Default().Reload(on); len(changes) != 1 || changes[0].String() != "nri.enable: (none) → true, "+
		"after a restart" {
		t.Errorf("a key that was left out: %v", changes)
	}
	if fmt.Sprint(Default().values()["images.pinned"]) != "[]" {
		t.Error("an empty list is no value")
	}
}

// TestLiveKeysAreDocumented wants the list of docs/configuration.md of what a reload takes over at once to be what the
// keys say.
func TestLiveKeysAreDocumented(t *testing.T) {
	const path, head, end = "../../docs/configuration.md", "- Taken over at once:\n", "\n- "
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), head)
	_, after, ends := strings.Cut(rest, end)
	if !ok || !ends {
		t.Fatal("there is no list of the keys that are taken over at once")
	}
	golden.File(t, path, before+head+strings.Join(liveRows(), "\n")+end+after)
}

// liveRows has an item for each table with keys that a reload takes over. It names those keys, or the others where they
// are fewer.
func liveRows() []string {
	var tables []string
	live, fixed := map[string][]string{}, map[string][]string{}
	for _, k := range Keys() {
		table, _, below := strings.Cut(k.Name, ".")
		if !below {
			table = ""
		}
		if !slices.Contains(tables, table) {
			tables = append(tables, table)
		}
		of := fixed
		if k.Live {
			of = live
		}
		of[table] = append(of[table], "`"+k.Name+"`")
	}
	var rows []string
	for _, table := range tables {
		switch all := "`" + table + ".*`"; {
		case len(live[table]) == 0:
		case len(fixed[table]) == 0:
			rows = append(rows, "  - "+all)
		case table != "" && len(fixed[table]) < len(live[table]):
			rows = append(rows, "  - "+all+" without "+strings.Join(fixed[table], ", "))
		default:
			rows = append(rows, "  - "+strings.Join(live[table], ", "))
		}
	}
	return rows
}
