package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/admin"
	"berth/internal/apparmor"
	"berth/internal/cgroup"
	"berth/internal/config"
	"berth/internal/host"
	"berth/internal/limit"
)

func TestUsernsDiagnosis(t *testing.T) {
	for _, c := range []struct {
		known bool
		limit string
		want  string
		says  string
	}{
		{false, "", warning, "CONFIG_USER_NS"}, {true, "0", warning, "user.max_user_namespaces"},
		{true, "95000", fine, "95000"}, {true, "", fine, "has them"},
	} {
		if d := usernsDiagnosis(c.known, c.limit); d.Result != c.want || !strings.Contains(d.Text+d.Remedy, c.says) {
			t.Errorf("%v, limit %q: %+v", c.known, c.limit, d)
		}
	}
	if d := userNamespaces(); d.Result != fine { // tests of user namespaces run here
		t.Errorf("here: %+v", d)
	}
}

func TestKernelDiagnosis(t *testing.T) {
	for release, want := range map[string]string{
		"4.19.0-amd64": broken, "5.9": broken, "5.10.0-21": warning, "5.18.19": warning, "5.19.0": fine, "6.1.0": fine,
		"10.0": fine, "strange": warning,
	} {
		if d := kernelDiagnosis(release); d.Result != want {
			t.Errorf("%s: %+v", release, d)
		}
	}
}

func TestCgroupDiagnosis(t *testing.T) {
	all := []string{"cpu", "memory", "pids"}
	for _, c := range []struct {
		mode        host.CgroupMode
		controllers []string
		want        string
	}{{host.CgroupV2, all, fine}, {host.CgroupHybrid, all, warning}, {host.CgroupV1, all, warning},
		{host.CgroupV2, all[:1], broken}, {host.CgroupV1, nil, broken}} {
		d := machine{facts: host.Facts{Cgroup: c.mode, Controllers: c.controllers}}.cgroups()
		if d.Result != c.want || (d.Result != fine) != (d.Remedy != "") {
			t.Errorf("%s %v: %+v", c.mode, c.controllers, d)
		}
	}
}

// TestUnpackerDiagnosis misses no program that is not used.
func TestUnpackerDiagnosis(t *testing.T) {
	for unpack, want := range map[string]string{config.UnpackInProcess: broken, config.UnpackInDaemon: fine} {
		cfg := config.Default()
		cfg.Images.Unpack, cfg.Images.Unpacker = unpack, "/nowhere"
		if d := (machine{config: cfg}).unpacker(); d.Result != want {
			t.Errorf("%s: %v", unpack, d)
		}
	}
}

func TestAppArmorDiagnosis(t *testing.T) {
	if d := (machine{}).apparmor(); d.Result != fine || !strings.Contains(d.Text, "does not enforce") {
		t.Errorf("a kernel without it: %+v", d)
	}
	cfg := config.Default()
	loaded := machine{config: cfg, facts: host.Facts{AppArmor: true, AppArmorProfiles: []string{"x", "berth-default"}}}
	if d := loaded.apparmor(); d.Result != fine || !strings.Contains(d.Text, "is loaded") {
		t.Errorf("a profile that is loaded: %+v", d)
	}
	_, err := apparmor.FindParser()
	want := map[bool]string{true: fine, false: warning}[err == nil]
	if d := (machine{config: cfg, facts: host.Facts{AppArmor: true}}).apparmor(); d.Result != want ||
		(want == fine) != (d.Remedy == "") {
		t.Errorf("a profile that is not loaded, parser %v: %+v", err, d)
	}
	cfg.AppArmor, loaded.facts.Seccomp, loaded.facts.Arch = config.AppArmorOff, true, "amd64"
	if d := loaded.apparmor(); d.Result != fine || !strings.Contains(d.Text, "the configuration says so") {
		t.Errorf("off, and a profile that is loaded: %+v", d)
	}
	if d := loaded.socketFamilies(); d.Result != warning || !strings.Contains(d.Text, "32-bit") {
		t.Errorf("off, and a profile that is loaded: %+v", d)
	}
}

// TestModulesOfTheDaemon wants what the running daemon does with containers told, and not what the machine would have a
// next one do: the profile in the kernel may be another daemon's.
func TestModulesOfTheDaemon(t *testing.T) {
	lacking := &admin.Module{On: true, Problem: "containers run without: no apparmor_parser"}
	m := machine{config: config.Default(), facts: host.Facts{
		AppArmor: true, SELinux: true, AppArmorProfiles: []string{"berth-default"}, Seccomp: true, Arch: "amd64",
	}}
	m.daemon = admin.InfoResponse{AppArmor: lacking, SELinux: lacking}
	for _, d := range []diagnosis{m.apparmor(), m.selinux()} {
		if d.Result != warning || !strings.Contains(d.Text, "no apparmor_parser") || d.Remedy == "" {
			t.Errorf("a daemon that has none to give: %+v", d)
		}
	}
	if d := m.socketFamilies(); d.Result != warning || !strings.Contains(d.Text, "32-bit") {
		t.Errorf("socket families without a profile: %+v", d)
	}
	m.facts.AppArmorProfiles = nil
	m.daemon.AppArmor = &admin.Module{On: true, Gives: "berth-default"}
	if d := m.apparmor(); d.Result != fine || !strings.Contains(d.Text, "gives containers berth-default") {
		t.Errorf("a daemon that has one to give: %+v", d)
	}
	m.daemon.SELinux = &admin.Module{}
	if d := m.selinux(); d.Result != fine || !strings.Contains(d.Text, "off") {
		t.Errorf("a daemon that leaves it off: %+v", d)
	}
}

// TestSocketFamiliesDiagnosis wants the doctor to say where 32-bit system calls reach what the filter closes, and to be
// content where they do not.
func TestSocketFamiliesDiagnosis(t *testing.T) {
	loaded := []string{"berth-default"}
	denies, allows := config.SocketcallDeny, config.SocketcallAllow
	handlers := func(byDefault string, says ...string) config.Runtimes {
		r := config.Runtimes{Default: byDefault, Handlers: map[string]config.Handler{}}
		for i, socketcall := range says {
			r.Handlers[string(rune('a'+i))] = config.Handler{Path: "/r", Socketcall: socketcall}
		}
		return r
	}
	filter := host.Facts{Arch: "amd64", Seccomp: true}
	profile := host.Facts{Arch: "amd64", Seccomp: true, AppArmor: true, AppArmorProfiles: loaded}
	for name, c := range map[string]struct {
		facts    host.Facts
		runtimes config.Runtimes
		result   string
		says     string
	}{
		"nothing":           {host.Facts{Arch: "amd64"}, config.Runtimes{}, warning, "all that the kernel has"},
		"a filter":          {filter, config.Runtimes{}, warning, "32-bit system calls reach AF_ALG"},
		"without 32 bits":   {host.Facts{Arch: "arm64", Seccomp: true}, config.Runtimes{}, fine, "seccomp"},
		"AppArmor":          {profile, config.Runtimes{}, fine, "berth-default"},
		"denied":            {filter, handlers("a", denies), fine, "32-bit programs"},
		"denied by one":     {filter, handlers("a", denies, allows), warning, "AF_VSOCK"},
		"not by a default":  {filter, handlers("", denies), warning, "AF_VSOCK"},
		"not by the filter": {host.Facts{Arch: "amd64"}, handlers("a", denies), warning, "all that"},
	} {
		cfg := config.Default()
		cfg.Runtimes = c.runtimes
		d := machine{facts: c.facts, config: cfg}.socketFamilies()
		if d.Result != c.result || !strings.Contains(d.Text, c.says) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestNRIDiagnosis(t *testing.T) {
	for name, c := range map[string]struct {
		state *admin.NRI
		want  []string
	}{
		"older daemon": {nil, nil},
		"off":          {&admin.NRI{Off: "nri.enable is false"}, []string{"ok off: nri.enable is false"}},
		"failed":       {&admin.NRI{Failed: "s: taken"}, []string{"warn off: s: taken"}},
		"on": {
			&admin.NRI{On: true, Socket: "/s", Plugins: 2, Names: []string{"1-a", "2-b"}},
			[]string{"ok on, plugins connect at /s; plugins that take part: 2 (1-a, 2-b)"},
		},
		"in part": {
			&admin.NRI{On: true, Plugins: 1, Problems: []string{"x", "y"}},
			[]string{"ok on, without a socket; plugins that take part: 1", "warn x", "warn y"},
		},
	} {
		var got []string
		for _, d := range diagnoseNRI(c.state) {
			got = append(got, d.Result+" "+d.Text)
			if (d.Result == fine) != (d.Remedy == "") {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, wanted %q", name, got, c.want)
		}
	}
}

func TestRuntimeDiagnosis(t *testing.T) {
	m := machine{facts: host.Facts{Cgroup: host.CgroupHybrid}, config: config.Default()}
	for _, c := range []struct {
		r           host.Runtime
		dispensable bool
		want, hint  string
	}{
		{host.Runtime{Name: "runc", Works: true}, false, fine, ""},
		{host.Runtime{Name: "runc", Path: "/proc/self/exe", Why: "x"}, false, broken, "install another"},
		{host.Runtime{Name: "crun", Path: "/proc/self/exe", Why: "hybrid"}, true, warning, "unified_cgroup_hierarchy"},
		{host.Runtime{Name: "kata", Path: "/nonexistent", Why: "fork/exec"}, false, broken, "correct path under " +
			"[runtimes.kata]"},
	} {
		if d := m.runtime(c.r, c.dispensable); d.Result != c.want || !strings.Contains(d.Remedy, c.hint) {
			t.Errorf("%+v: %+v", c.r, d)
		}
	}
}

func TestNetworkDiagnosis(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		want             []string
		says             string
	}{
		{"list", "10-a.conflist", `{"name":"n","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`, []string{fine},
			"n, of "},
		{"single", "10-a.conf", `{"name":"n","type":"bridge"}`, []string{fine}, "n, of "},
		{"plugin missing", "10-a.conflist",
			`{"name":"n","plugins":[{"type":"bridge","ipam":{"type":"dhcp"}},{"type":"portmap"}]}`, []string{fine, broken, warning},
			"portmap is not in "},
		{"ipam elsewhere", "10-a.conflist", `{"name":"n","plugins":[{"type":"bridge","ipam":{"type":"dhcp"}}]}`,
			[]string{fine, warning}, "dhcp is not in "},
		{"not executable", "10-a.conf", `{"name":"n","type":"readme"}`, []string{fine, broken}, "readme"},
		{"not JSON", "10-a.conflist", `{`, []string{broken}, "line 1, column 1: unexpected end of JSON input"},
		{"plugins beside it", "10-a.conflist", `{"name":"beside"}`, []string{fine}, "beside, of "},
		{"not beside it", "10-a.conflist", `{"name":"alone","loadOnlyInlinedPlugins":true,"plugins":[{"type":"bridge"}]}`,
			[]string{fine}, "alone, of "},
		{"empty", "10-a.conflist", `{"name":"n"}`, []string{broken}, "lists no plugins"},
		{"empty list", "10-a.conflist", `{"name":"n","type":"bridge","plugins":[]}`, []string{broken}, "no plugins"},
		{"no name", "10-a.conflist", `{"plugins":[{"type":"bridge"}]}`, []string{broken}, "10-a.conflist: "},
		{"bad name", "10-a.conflist", `{"name":"a/b","plugins":[{"type":"bridge"}]}`, []string{broken}, "its name"},
		{"no type", "10-a.conflist", `{"name":"n","plugins":[{"type":"bridge"},{}]}`, []string{broken}, "missing 'type'"},
		{"a path", "10-a.conflist", `{"name":"n","plugins":[{"type":"../bridge"}]}`, []string{broken}, "a file name"},
		{"version of the future", "10-a.conflist", `{"cniVersion":"9.0.0","name":"n","plugins":[{"type":"bridge"}]}`,
			[]string{broken}, "cniVersion"},
		{"hidden", ".10-a.conflist", `{`, []string{broken}, "no CNI configuration"},
		{"other file", "README", `{`, []string{broken}, "no CNI configuration"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, plugins := t.TempDir(), t.TempDir()
			write := func(path, text string, mode os.FileMode) {
				if err := os.WriteFile(path, []byte(text), mode); err != nil {
					t.Fatal(err)
				}
			}
			write(filepath.Join(dir, c.file), c.text, 0o644)
			for _, name := range []string{"beside", "alone"} {
				if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			write(filepath.Join(dir, "alone", "10-absent.conf"), `{"type":"absent"}`, 0o644)
			write(filepath.Join(dir, "beside", "10-bridge.conf"), `{"type":"bridge"}`, 0o644)
			write(filepath.Join(plugins, "bridge"), "", 0o755)
			write(filepath.Join(plugins, "host-local"), "", 0o755)
			write(filepath.Join(plugins, "readme"), "", 0o644)
			found := diagnoseNetwork(config.CNI{ConfigDir: dir, PluginDirs: []string{"/nonexistent", plugins}}, false)
			var got []string
			text := ""
			for _, d := range found {
				got = append(got, d.Result)
				text += d.Text + "\n"
				if d.Result != fine && d.Remedy == "" {
					t.Errorf("no remedy: %+v", d)
				}
			}
			if !slices.Equal(got, c.want) || !strings.Contains(text, c.says) {
				t.Errorf("got %v: %s", got, text)
			}
		})
	}
}

func TestDiskDiagnosis(t *testing.T) {
	dir := t.TempDir()
	if d := (machine{}).disk("images", filepath.Join(dir, "not", "yet", "there")); d.Result == broken ||
		!strings.Contains(d.Text, "free") {
		t.Errorf("%+v", d)
	}
	if d := (machine{}).disk("images", "/proc/x"); d.Result != broken {
		t.Errorf("a file system without room: %+v", d)
	}
}

// doctor runs the doctor for a node whose configuration is an empty file, and returns what it found by subject.
func doctor(t *testing.T, d *daemon) map[string][]diagnosis {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BERTH_CONFIG", path)
	t.Setenv("TMPDIR", t.TempDir()) // for what is left: in the usual place others have a doctor, too
	out, errs, _ := d.berth(t, "doctor", "-o", "json")
	var all []diagnosis
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %q %q", err, out, errs)
	}
	found := map[string][]diagnosis{}
	for _, x := range all {
		found[x.Subject] = append(found[x.Subject], x)
	}
	return found
}

func TestDoctorWithADaemon(t *testing.T) {
	d := startDaemon(t)
	d.info = admin.InfoResponse{Version: "older",
		Problems: []admin.Problem{{Pod: id("a"), Step: "network", Message: "plugin gone"}}}
	found := doctor(t, d)
	if x := found["socket"]; len(x) != 1 || x[0].Result != fine {
		t.Errorf("socket: %+v", x)
	}
	if x := found["NetworkReady"]; len(x) != 1 || x[0].Result != broken ||
		!strings.Contains(x[0].Text, "nothing in net.d") {
		t.Errorf("network: %+v", x)
	}
	if x := found["daemon"]; len(x) != 2 || !strings.Contains(x[0].Text, "older") ||
		x[1].Text != "pod a00000000000: step network: plugin gone" {
		t.Errorf("daemon: %+v", x)
	}
	for _, subject := range []string{"user", "kernel", "overlay", "seccomp", "cgroups", "monitor", "disk",
		"configuration"} {
		if len(found[subject]) == 0 {
			t.Errorf("nothing about the %s", subject)
		}
	}
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "berth-doctor-*"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestDoctorWithoutADaemon(t *testing.T) {
	x := doctor(t, &daemon{socket: filepath.Join(t.TempDir(), "s")})["socket"]
	if len(x) != 1 || x[0].Result != warning || !strings.Contains(x[0].Remedy, "berth serve") {
		t.Errorf("%+v", x)
	}
}

func TestDoctorFindsABrokenConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte("root = 5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BERTH_CONFIG", path)
	for _, c := range []struct {
		d    *daemon
		want string
	}{{&daemon{socket: filepath.Join(t.TempDir(), "s")}, "bad   configuration"}, {startDaemon(t), "warn  configuration"}} {
		out, _, code := c.d.berth(t, "doctor")
		first, _, _ := strings.Cut(out, "\n")
		if code != 1 || !strings.HasPrefix(first, c.want) || !strings.Contains(first, path+":1") {
			t.Errorf("code %d, %q, want %q", code, first, c.want)
		}
	}
}

func TestDoctorLooksAtTheDaemonsConfiguration(t *testing.T) {
	dir := t.TempDir()
	cfg := config.Default()
	cfg.Root, cfg.State, cfg.CNI.ConfigDir = dir+"/root", dir+"/state", dir+"/net.d"
	d := startDaemon(t)
	d.info.Config = cfg.TOML()
	found := doctor(t, d)
	if x := found["configuration"]; len(x) != 1 || x[0].Result != fine || x[0].Text != "that of the daemon at "+d.socket {
		t.Errorf("configuration: %+v", x)
	}
	if x := found["network"]; len(x) != 1 || !strings.Contains(x[0].Text, " in "+dir+"/net.d") {
		t.Errorf("network: %+v", x)
	}
	if x := found["disk"]; len(x) != 2 || !strings.HasPrefix(x[0].Text, dir+"/root ") ||
		!strings.HasPrefix(x[1].Text, dir+"/state ") {
		t.Errorf("disk: %+v", x)
	}
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "berth-config-*"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	d.info.Config = "key_of_a_later_release = 1\n"
	if x := doctor(t, d)["configuration"]; len(x) != 2 || x[0].Result != warning ||
		!strings.Contains(x[0].Text, "key_of_a_later_release") || x[1].Result != fine {
		t.Errorf("unreadable: %+v", x)
	}
}

func TestDefaultRuntimeThatIsNotInstalled(t *testing.T) {
	m := machine{config: config.Default()}
	runc := []host.Runtime{{Name: "runc", Path: "/usr/sbin/runc", Works: true}}
	for name, want := range map[string][]string{"": nil, "runc": nil, "crun": {broken}} {
		m.config.Runtimes.Default = name
		var got []string
		for _, d := range m.fallback(runc) {
			got = append(got, d.Result)
			if !strings.Contains(d.Text, "find the runtime crun: it is in none of /usr/local/sbin, ") || d.Remedy == "" {
				t.Errorf("%+v", d)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("default %q: %v", name, got)
		}
	}
}

// TestBaseSpecDiagnosis wants base specs told that cannot be used, and those with fewer than the usual capabilities.
func TestBaseSpecDiagnosis(t *testing.T) {
	dir := t.TempDir()
	handlers := map[string]config.Handler{"none": {}, "gone": {BaseSpec: dir + "/gone"}}
	const three = `{"process":{"capabilities":{"bounding":["CAP_AUDIT_WRITE","CAP_KILL","CAP_NET_BIND_SERVICE"]}}}`
	for name, text := range map[string]string{"good": "{}", "odd": "{\n\"x\":1}", "three": three} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		handlers[name] = config.Handler{BaseSpec: path}
	}
	found := baseSpecs(config.Runtimes{Handlers: handlers})
	for i, want := range []string{"no such file", "line 2: json: unknown field"} {
		if i >= len(found) || found[i].Result != broken || !strings.Contains(found[i].Text, want) {
			t.Fatalf("%+v", found)
		}
	}
	if len(found) != 3 || found[2].Result != fine || !strings.Contains(found[2].Text, "none: CAP_CHOWN CAP_DAC_OVER") {
		t.Errorf("%+v", found)
	}
}

// TestTrialThatIsNotUndone wants nothing of what a trial left behind to be touched.
func TestTrialThatIsNotUndone(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "trial", "rootfs", "precious")
	if err := os.MkdirAll(precious, 0o755); err != nil {
		t.Fatal(err)
	}
	if x := endTrials(dir); len(x) != 1 || x[0].Result != warning || !strings.Contains(x[0].Remedy, dir) {
		t.Errorf("%+v", x)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	if x := endTrials(empty); x != nil {
		t.Errorf("%+v", x)
	}
	if _, err := os.Stat(empty); !absent(err) {
		t.Errorf("left: %v", err)
	}
}

func TestLayersDiagnosis(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cfg := config.Default()
	look := func(root string) diagnosis {
		cfg.Images.Root = filepath.Join(root, "not", "yet", "there")
		return machine{config: cfg}.layers()
	}
	dir := t.TempDir()
	if d := look(dir); d.Result != fine || !strings.Contains(d.Text, dir) {
		t.Errorf("%+v", d)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if err := unix.Mount("none", dir, "ramfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	if d := look(dir); d.Result != broken || !strings.Contains(d.Remedy, "images.root") {
		t.Errorf("%+v", d)
	}
	if d := look("/proc"); d.Result != warning || d.Remedy == "" {
		t.Errorf("%+v", d)
	}
}

func TestVerifiersDiagnosis(t *testing.T) {
	cfg := config.Default()
	look := func() string {
		found := machine{config: cfg}.verifiers()
		if len(found) != 1 {
			t.Fatalf("found %+v", found)
		}
		return found[0].Result + " " + found[0].Text
	}
	if found := (machine{config: cfg}).verifiers(); found != nil {
		t.Errorf("nobody is configured: %+v", found)
	}
	dir := t.TempDir()
	cfg.Verifier.Dir = filepath.Join(dir, "v")
	if got := look(); !strings.HasPrefix(got, "bad every image is refused: the directory of verifiers ") {
		t.Error(got)
	}
	if err := os.Mkdir(cfg.Verifier.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := look(); !strings.HasPrefix(got, "warn every image is accepted") {
		t.Error(got)
	}
	for mode, want := range map[os.FileMode]string{0o755: "ok 1 in ", 0o644: "bad every image is refused: verifier "} {
		path := filepath.Join(cfg.Verifier.Dir, "policy")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if got := look(); !strings.HasPrefix(got, want) {
			t.Error(got)
		}
	}
}

// TestDoctorListsLimits wants the limits in force, and a warning about one that is nearly used up.
func TestDoctorListsLimits(t *testing.T) {
	cfg := config.Default()
	cfg.Images.MaxLayers = 77
	d := startDaemon(t)
	d.info.Config = cfg.TOML()
	d.info.Limits = []admin.Limit{{Name: limit.Sessions.Name, Used: 800, Limit: 1000},
		{Name: limit.Downloads.Name, Used: 3, Limit: 8}}
	found := doctor(t, d)["limit"]
	if len(found) != len(limit.All()) {
		t.Errorf("%d limits of %d", len(found), len(limit.All()))
	}
	for _, want := range []diagnosis{
		{Result: fine, Text: "layers of an image: 77 (images.max_layers)"},
		{Result: fine, Text: "layers fetched at once: 3 used of 8 (images.max_concurrent_downloads)"},
		{Result: fine, Text: "layers fetched at once for one pull: by cores (images.max_pull_layers)"},
		{Result: warning, Text: limit.Sessions.Name + ": 800 used of 1000 (streaming.max_waiting)",
			Remedy: "what is beyond it is refused; raise streaming.max_waiting where that is too early"},
	} {
		want.Subject = "limit"
		if !slices.Contains(found, want) {
			t.Errorf("there is no %+v", want)
		}
	}
}

func TestDoctorNamesHoles(t *testing.T) {
	r := host.Runtime{Name: "fast", Path: "/x/runc", Program: "runc", Version: "1.2.7", Works: true}
	d, open := holes(r)
	if !open || d.Result != warning || !strings.Contains(d.Text, "/x/runc 1.2.7: CVE-2025-31133 of 2025-11-05") ||
		!strings.Contains(d.Remedy, "GHSA-9493-h29p-rfm2") {
		t.Errorf("%v: %+v", open, d)
	}
	r.Version = "1.2.8"
	if d, open := holes(r); open {
		t.Errorf("a mended one: %+v", d)
	}
}

// TestLimitWithoutAKey asks for a limit whose key the configuration does not have: it is no limit of 0.
func TestLimitWithoutAKey(t *testing.T) {
	cfg := config.Default()
	if _, err := inForce(cfg, limit.Budget{Name: "shoes", Key: "limits.shoes"}); err == nil ||
		!strings.Contains(err.Error(), "limits.shoes") {
		t.Errorf("a key that is not there: %v", err)
	}
	if b, err := inForce(cfg, limit.Budget{Name: "sessions", Key: limit.Sessions.Key}); err != nil || b.Limit == 0 {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestCgroupMovesDiagnosis(t *testing.T) {
	mount := cgroup.Unified()
	favored := false
	if mount != "" {
		var err error
		if favored, err = cgroup.FavorsDynmods(mount); err != nil {
			t.Fatal(err)
		}
	}
	for asked, want := range map[bool]diagnosis{
		false: {Result: fine, Text: "cgroup_favor_dynmods = true takes that away"},
		true:  {Result: warning, Text: "although cgroup_favor_dynmods says"},
	} {
		switch {
		case mount == "":
			want = diagnosis{Result: fine, Text: "takes cgroup v2"}
		case favored:
			want = diagnosis{Result: fine, Text: "has favordynmods"}
		}
		d := cgroupMoves(&config.Config{CgroupFavorDynmods: asked})
		if d.Result != want.Result || !strings.Contains(d.Text, want.Text) {
			t.Errorf("asked for: %v, favored: %v: %+v", asked, favored, d)
		}
	}
}
