package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/config"
	"berth/internal/spec"
	"berth/test/golden"
)

// look finds programs where no machine has them.
func look(name string) (string, error) {
	if name == "runc" || name == "crun" || name == "runsc" || name == "nvidia-container-runtime" {
		return "/usr/test/" + name, nil
	}
	return "", fs.ErrNotExist
}

// unusedParts reads a base spec as the client of Berth does.
func unusedParts(text []byte) (notes []Note, err error) {
	base, err := spec.ParseBase(text)
	if err != nil {
		return nil, err
	}
	for _, part := range base.Unused() {
		notes = append(notes, Note{Key: part.Name, Why: part.Why})
	}
	return notes, nil
}

const resultMark = "==== becomes ====\n"

// TestConvert compares what configurations become with files that begin with the files of containerd, each after a line
// with its name. "release" is not one of its files, but its version, and below "docker" is what Docker has for
// registries.
func TestConvert(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(cases) < 4 {
		t.Fatal(cases, err)
	}
	for _, name := range cases {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		input, _, _ := strings.Cut(string(text), resultMark)
		dir := t.TempDir()
		o := Options{Look: look, Base: unusedParts, Dir: "/etc/berth", DockerCerts: filepath.Join(dir, "docker")}
		for _, part := range strings.Split(input, "==== ")[1:] {
			file, content, _ := strings.Cut(part, " ====\n")
			path := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			content = strings.ReplaceAll(content, "DIR", dir)
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			switch file {
			case "config.toml":
				o.Path = path
			case "registries.yaml":
				o.Registries = path
			case "release":
				o.Release = strings.TrimSpace(content)
			}
		}
		r, err := Convert(o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		made := strings.ReplaceAll(told(r), dir, "DIR")
		golden.File(t, name, input+resultMark+made)
		accepted(t, name, r)
	}
}

// told is a result as text.
func told(r *Result) string {
	var b strings.Builder
	for _, n := range r.Notes {
		fmt.Fprintln(&b, n)
	}
	fmt.Fprintf(&b, "---- conf.d\n%s", r.Config)
	for _, f := range r.Bases {
		fmt.Fprintf(&b, "---- base-specs/%s %v\n%s", f.Name, f.Mode, f.Data)
	}
	for _, f := range r.Hosts {
		fmt.Fprintf(&b, "---- certs.d/%s %v\n%s", f.Name, f.Mode, f.Data)
	}
	if r.Credentials != nil {
		fmt.Fprintf(&b, "---- credentials\n%s", r.Credentials)
	}
	return b.String()
}

// accepted wants Berth to take what came out.
func accepted(t *testing.T, name string, r *Result) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, r.Config, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Flags{Path: path, PathSet: true}); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// TestDefaults has nothing to say of what containerd writes as its defaults but that there is no pause image, and keeps
// the default runtime and the cgroup driver.
func TestDefaults(t *testing.T) {
	files, err := filepath.Glob("testdata/default-*.toml")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		_, release, _ := strings.Cut(strings.TrimSuffix(path, ".toml"), "-")
		r, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere", Release: release + ".1"})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, n := range r.Notes {
			if n.To == "" && n.Why != noPause {
				t.Errorf("%v", n)
			}
		}
		want := "cgroup_driver = 'cgroupfs'\nselinux = 'off'\n\n[runtimes]\ndefault = 'runc'\n"
		_, text, _ := strings.Cut(string(r.Config), "\n\n")
		for _, old := range []string{ // before 2.0
			"[nri]\nenable = false\n\n", "[pods]\nunprivileged_icmp = false\nunprivileged_ports = false\n\n",
		} {
			text = strings.Replace(text, old, "", 1)
		}
		if text != want {
			t.Errorf("%s:\n%s", path, r.Config)
		}
		accepted(t, path, r)
	}
}

// TestUnsaid has what no file says as containerd has it of that release, whatever Berth does by itself. What is said is
// stronger.
func TestUnsaid(t *testing.T) {
	const early = "cgroup_driver = 'cgroupfs'\nselinux = 'off'\n\n[nri]\nenable = false\n\n" +
		"[pods]\nunprivileged_icmp = false\nunprivileged_ports = false\n\n[runtimes]\ndefault = 'runc'\n"
	const later = "cgroup_driver = 'cgroupfs'\nselinux = 'off'\n\n[runtimes]\ndefault = 'runc'\n"
	const runtime = `[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.`
	for name, c := range map[string]struct{ text, release, want string }{
		"1.7": {"version = 2\n", "1.7.28", early}, "2.1": {"version = 3\n", "2.1.4", later},
		"nobody knows, of version 2": {"version = 2\n", "", later}, "nobody knows": {"version = 3\n", "", later},
		"1.7, and NRI is on": {"version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = false\n", "1.7.28",
			strings.Replace(early, "[nri]\nenable = false\n\n", "", 1)},
		"2.1, and all is said": {"version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\n" +
			"enable_unprivileged_ports = true\nenable_selinux = true\n", "2.1.4", strings.Replace(later, "'off'", "'on'", 1)},
		"the driver of another than the default": {"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" +
			"default_runtime_name = \"runsc\"\n" + runtime + "runsc]\nruntime_type = \"io.containerd.runsc.v1\"\n" +
			runtime + "runc.options]\nSystemdCgroup = true\n", "2.1.4",
			"cgroup_driver = 'systemd'\nselinux = 'off'\n\n[runtimes]\ndefault = 'runsc'\n\n[runtimes.runsc]\nargs = []\n" +
				"driver = 'oci-infra'\npath = '/usr/test/runsc'\n"},
		"a default that is not called as runc": {"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" +
			"default_runtime_name = \"runsc\"\n" + runtime + "runsc]\nruntime_type = \"io.containerd.runsc.v1\"\n", "2.1.4",
			"selinux = 'off'\n\n[runtimes]\ndefault = 'runsc'\n\n[runtimes.runsc]\nargs = []\n" +
				"driver = 'oci-infra'\npath = '/usr/test/runsc'\n"},
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		write(t, path, c.text)
		r, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere", Release: c.release, SELinux: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, text, _ := strings.Cut(string(r.Config), "\n\n"); text != c.want {
			t.Errorf("%s:\n%s\nwanted\n%s", name, text, c.want)
		}
		noted := strings.Contains(told(r), "one before 2.0 has NRI, unprivileged ports")
		if noted != (name == "nobody knows, of version 2") {
			t.Errorf("%s: a note about the release: %v", name, noted)
		}
		accepted(t, name, r)
	}
}

// TestSELinux has labels where containerd gives them and this kernel can, and none where containerd gives none.
func TestSELinux(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	for _, c := range []struct {
		said, kernel bool
		want, note   string
	}{
		{true, true, "selinux = 'on'\n", "enable_selinux = true → selinux = 'on': where the kernel has SELinux off, "},
		{true, false, "", "enable_selinux = true is not carried over: this kernel has SELinux off"},
		{false, true, "selinux = 'off'\n", "enable_selinux = false → selinux = 'off': containers have no labels, as under"},
		{false, false, "selinux = 'off'\n", "enable_selinux = false → selinux = 'off': "},
	} {
		write(t, path, fmt.Sprintf("version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_selinux = %v\n", c.said))
		r, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere", Release: "2.1.4", SELinux: c.kernel})
		if err != nil {
			t.Fatal(err)
		}
		if text := string(r.Config); !strings.Contains(text, c.want) || strings.Contains(text, "selinux") != (c.want != "") ||
			!strings.Contains(told(r), c.note) {
			t.Errorf("%+v:\n%s", c, told(r))
		}
	}
}

// TestAppArmorOff has containers without a profile where containerd gives them none.
func TestAppArmorOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	for off, want := range map[bool]string{true: "apparmor = 'off'\n", false: ""} {
		write(t, path, fmt.Sprintf("version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ndisable_apparmor = %v\n", off))
		r, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere", Release: "2.1.4"})
		if err != nil {
			t.Fatal(err)
		}
		if text := string(r.Config); !strings.Contains(text, want) || strings.Contains(text, "apparmor") != off ||
			strings.Contains(told(r), "disable_apparmor = true → apparmor = 'off': containers that name no") != off {
			t.Errorf("%v:\n%s\n%s", off, r.Config, told(r))
		}
		accepted(t, path, r)
	}
}

// TestValidator has all that the validator of NRI refuses refused by Berth's, and notes what that does not know.
func TestValidator(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	text := "version = 3\n[plugins.'io.containerd.nri.v1.nri'.default_validator]\nenable = true\n"
	for _, name := range append([]string{"reject_later_adjustment"}, rejections...) {
		text += name + " = true\n"
	}
	write(t, path, text)
	r, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere", Release: "2.1.4"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range rejections {
		if !strings.Contains(string(r.Config), name+" = true\n") {
			t.Errorf("%s is not carried over", name)
		}
	}
	if !strings.Contains(told(r), "reject_later_adjustment = true is not carried over: the validator of Berth has no") {
		t.Errorf("what is not known:\n%s", told(r))
	}
	accepted(t, path, r)
}

// TestVerifiers has programs that containerd asks by itself asked by Berth.
func TestVerifiers(t *testing.T) {
	dir := t.TempDir()
	for i, want := range []string{"", "[image_verifier]\ndir = '" + dir + "'\n"} {
		r, err := Convert(Options{Path: "testdata/default-2.4.toml", Look: look, Verifiers: dir, DockerCerts: "/nowhere"})
		if err != nil {
			t.Fatal(err)
		}
		text := string(r.Config)
		if strings.Contains(text, "[image_verifier]") != (i > 0) || !strings.Contains(text, want) {
			t.Errorf("%d programs: %s", i, r.Config)
		}
		if err := os.WriteFile(filepath.Join(dir, "verify"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDisabledPlugins turns NRI, verifiers and metrics off in Berth where they are off in containerd, whatever else is
// set of them, and though there are programs that containerd would ask.
func TestDisabledPlugins(t *testing.T) {
	dir := t.TempDir()
	path, programs := filepath.Join(dir, "config.toml"), filepath.Join(dir, "bin")
	write(t, filepath.Join(programs, "verify"), "")
	write(t, path, `version = 2
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.image-verifier.v1.bindir", "io.containerd.server.v1.metrics",
 "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.btrfs"]
[plugins."io.containerd.image-verifier.v1.bindir"]
bin_dir = "/opt/verify"
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "/run/nri.sock"
[metrics]
address = "127.0.0.1:1338"
`)
	r, err := Convert(Options{Path: path, Look: look, Verifiers: programs, DockerCerts: "/nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	text := told(r)
	for _, want := range []string{
		":2: disabled_plugins = ['io.containerd.nri.v1.nri'] → nri.enable = false\n",
		"disabled_plugins = ['io.containerd.image-verifier.v1.bindir'] → no image_verifier.dir",
		"disabled_plugins = ['io.containerd.server.v1.metrics'] → no metrics.address",
		"disabled_plugins = ['io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.btrfs'] is not carried over",
		"\n[nri]\nenable = false\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, not := range []string{"[image_verifier]", "[metrics]", "nri.sock"} {
		if strings.Contains(string(r.Config), not) {
			t.Errorf("%s in\n%s", not, r.Config)
		}
	}
}

// TestHostileFiles are errors, and none takes long.
func TestHostileFiles(t *testing.T) {
	dir := t.TempDir()
	huge, err := os.Create(filepath.Join(dir, "huge"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = huge.Close() }()
	if err := huge.Truncate(100 << 20); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	alias := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		alias += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 10))
	}
	for name, o := range map[string]Options{
		"huge":          {Path: huge.Name()},
		"deep":          {Path: write("deep", "a = "+strings.Repeat("[", 500_000))},
		"deep lists":    {Path: write("lists", "a = "+strings.Repeat("[1,", 300_000))},
		"deep in lines": {Path: write("inlines", "a = "+strings.Repeat("[\n", 300_000))},
		"deep tables":   {Path: write("tables", "a = "+strings.Repeat("{b=", 200_000))},
		"no TOML":       {Path: write("noise", "\x00\xff = [")},
		"a device":      {Path: "/dev/zero"},
		"itself":        {Path: write("future", "version = 99\n")},
		"missing":       {Path: filepath.Join(dir, "none")},
		"huge YAML":     {Registries: huge.Name()},
		"aliases":       {Registries: write("alias", alias+"mirrors: {x: *j}\n")},
		"deep YAML":     {Registries: write("yaml", strings.Repeat("{a: ", 100_000))},
	} {
		if r, err := Convert(o); err == nil {
			t.Errorf("%s: %v", name, r.Notes)
		}
	}
	circle := write("circle.toml", "imports = [\"circle.toml\", \"*.toml\"]\n")
	if _, err := Convert(Options{Path: circle, Look: look}); err != nil {
		t.Errorf("a file that imports itself: %v", err)
	}
}

// TestImportsOfImports has the last word where containerd has it: with the imports of imports, after all of the file
// itself. A file that is named, and is not there, is an error as in containerd.
func TestImportsOfImports(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.toml")
	write(t, path, "imports = [\"a.toml\", \"b.toml\", \"none-*.toml\"]\n")
	write(t, filepath.Join(dir, "a.toml"), "imports = [\"c.toml\"]\n[debug]\nlevel = \"info\"\n")
	write(t, filepath.Join(dir, "b.toml"), "[debug]\nlevel = \"warn\"\n")
	write(t, filepath.Join(dir, "c.toml"), "imports = [\"config.toml\"]\n[debug]\nlevel = \"error\"\n")
	r, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere"})
	if err != nil || !strings.Contains(string(r.Config), "log_level = 'error'\n") {
		t.Errorf("%v: %+v", err, r)
	}
	write(t, path, "imports = [\"none.toml\"]\n")
	if _, err := Convert(Options{Path: path, Look: look}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an import that is not there: %v", err)
	}
}

// TestScalarsForTables notes a value where containerd has a table, and takes the rest.
func TestScalarsForTables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	for _, key := range []string{
		"registry", "containerd", "cni", "containerd.runtimes", "registry.mirrors", "registry.configs", "registry.auths",
		"registry.headers", "containerd.runtimes.runc", "containerd.runtimes.runc.options", "x509_key_pair_streaming",
		"image_decryption", "pinned_images", "registry.mirrors.m", "registry.configs.c", "registry.configs.c.tls",
	} {
		for _, value := range []string{`"x"`, "7", "true", "[1]"} {
			write(t, path, "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n"+key+" = "+value+"\n")
			if r, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere"}); err != nil || r.Config == nil {
				t.Errorf("%s = %s: %v", key, value, err)
			}
		}
	}
	write(t, path, "")
	if _, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere"}); err != nil {
		t.Errorf("an empty file: %v", err)
	}
	for _, key := range []string{
		"plugins", "debug", "grpc", "metrics", "proxy_plugins", "stream_processors", "timeouts", "cgroup", "plugins.x",
		"plugins.\"io.containerd.nri.v1.nri\"", "imports", "disabled_plugins",
	} {
		write(t, path, "version = 2\n"+key+" = \"x\"\n")
		if _, err := Convert(Options{Path: path, Look: look, DockerCerts: "/nowhere"}); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// TestRegistriesThatAreNone passes over, with a note, a directory of too many files and what is said of no registry.
// What else there is is taken.
func TestRegistriesThatAreNone(t *testing.T) {
	dir := t.TempDir()
	for i := range mostHostFiles + 1 {
		write(t, filepath.Join(dir, "certs.d/many.example", fmt.Sprint(i)), "")
	}
	write(t, filepath.Join(dir, "certs.d/huge.example/hosts.toml"), strings.Repeat("#", 2<<20))
	write(t, filepath.Join(dir, "certs.d/good.example/hosts.toml"), "server = \"https://good.example\"\n")
	write(t, filepath.Join(dir, "config.toml"), `version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."../x".tls]
ca_file = "/ca.pem"
[plugins."io.containerd.grpc.v1.cri".registry.configs."y.example".tls]
ca_file = "/ca.pem"
`)
	r, err := Convert(Options{Path: filepath.Join(dir, "config.toml"), Look: look})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(told(r), dir, "DIR")
	for _, want := range []string{
		"DIR/certs.d/many.example: it is not carried over: it has more than 50 files\n",
		"DIR/certs.d/huge.example/hosts.toml: it is not carried over: ",
		`registry.configs.../x.tls.ca_file = '/ca.pem' is not carried over: it is of the name of no registry`,
		"certs.d, 1 files of 1 registries", "---- certs.d/good.example/hosts.toml", "---- certs.d/y.example/hosts.toml",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestBaseThatIsNone refuses a base spec that the daemon would refuse, and one that is gone, before anything is made
// of the rest: containers of that handler would get more than they have.
func TestBaseThatIsNone(t *testing.T) {
	dir := t.TempDir()
	base, path := filepath.Join(dir, "base.json"), filepath.Join(dir, "config.toml")
	const table = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"
	write(t, path, "version = 3\n"+table+"base_runtime_spec = \""+base+"\"\n")
	for _, c := range []struct{ text, want string }{
		{"", "no such file"}, {`{"x": 1}`, "line 1: json: unknown field \"x\""}, {strings.Repeat(" ", 1<<20+1), "1048576 bytes"},
	} {
		if c.text != "" {
			write(t, base, c.text)
		}
		_, err := Convert(Options{Path: path, Look: look, Base: unusedParts, DockerCerts: "/nowhere"})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "config.toml:3: ") {
			t.Errorf("%.20q: %v", c.text, err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestCertificatesStay wants certificates that the service has beside containerd's files named as what has to stay.
func TestCertificatesStay(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.toml"), "version = 3\n")
	unit := "Environment=SSL_CERT_FILE=" + dir + "/ca.pem SSL_CERT_DIR=/etc/ssl/certs:" + dir + "/certs " +
		"HTTP_PROXY=http://p:1\n"
	r, err := Convert(Options{Path: filepath.Join(dir, "config.toml"), Look: look, DockerCerts: "/nowhere", Unit: unit})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"SSL_CERT_FILE": ": it has to stay in " + dir, "SSL_CERT_DIR": ": it has to stay in " + dir, "HTTP_PROXY": "",
	} {
		if !strings.Contains(told(r), name+" → the environment of the service of Berth"+want+"\n") {
			t.Errorf("%s:\n%s", name, told(r))
		}
	}
}

// TestUnit takes the proxies and certificates of containerd's service over, of its unit and of the files that it names,
// shows no password, and says what else a drop-in sets.
func TestUnit(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "proxy.conf"), "[Service]\nEnvironment=\"HTTP_PROXY=http://p:3128\" A=b\n# LimitX=1\n")
	write(t, filepath.Join(dir, "service.d/all.conf"), "[Service]\nTimeoutSec=1\n")
	write(t, filepath.Join(dir, "more.conf"), "[Service]\nLimitNOFILE = infinity\nCPUAffinity=0 1\nExecStart=\n;Nice=1\n")
	write(t, filepath.Join(dir, "env"), "# proxies\nHTTPS_PROXY='http://u:s3cret@p:3128'\nno_proxy=\"10.0.0.0/8, .svc\"\n"+
		"CONTAINERD_HTTP_PROXY=http://own:1\nno assignment\n= \nX_PROXY=1\nLANG=C\n")
	unit := "Environment=HTTP_PROXY=http://p:3128 HTTPS_PROXY=http://weak:1 \"SSL_CERT_FILE=/a b.pem\" LANG=C\n" +
		"EnvironmentFiles=" + dir + "/env (ignore_errors=yes)\nEnvironmentFiles=" + dir + "/gone (ignore_errors=yes)\n" +
		"DropInPaths=" + dir + "/proxy.conf " + dir + "/more.conf " + dir +
		"/service.d/all.conf\n\nEnvironment=\nDropInPaths=\n"
	r, err := Convert(Options{Look: look, Unit: unit})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"HTTP_PROXY": "http://own:1", "HTTPS_PROXY": "http://u:s3cret@p:3128", "no_proxy": "10.0.0.0/8, .svc",
		"SSL_CERT_FILE": "/a b.pem",
	}
	if !maps.Equal(r.Environment, want) {
		t.Errorf("%q, wanted %q", r.Environment, want)
	}
	text := told(r)
	for _, want := range []string{
		dir + "/env: HTTPS_PROXY → the environment of the service of Berth\n",
		"the service of containerd: SSL_CERT_FILE → ",
		dir + "/more.conf: LimitNOFILE, CPUAffinity is not carried over: systemctl edit berth",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "s3cret") || strings.Contains(text, "proxy.conf") || strings.Contains(text, "gone") ||
		strings.Contains(text, "service.d") {
		t.Errorf("too much is told:\n%s", text)
	}
}

// TestWithEnvironment adds what a file lacks, in a form from which the same is read.
func TestWithEnvironment(t *testing.T) {
	env := map[string]string{"HTTP_PROXY": `http://u:a"b\c$d@p:1`, "NO_PROXY": "a, b", "HTTPS_PROXY": "http://other:1"}
	file := WithEnvironment([]byte("# own\nHTTPS_PROXY=http://own:1"), env)
	want := "# own\nHTTPS_PROXY=http://own:1\nHTTP_PROXY=\"http://u:a\\\"b\\\\c\\$d@p:1\"\nNO_PROXY=\"a, b\"\n"
	if string(file) != want {
		t.Errorf("%s\nwanted\n%s", file, want)
	}
	if got := assignments(string(file)); !slices.Equal(got, []string{
		"HTTPS_PROXY=http://own:1", "HTTP_PROXY=" + env["HTTP_PROXY"], "NO_PROXY=a, b",
	}) {
		t.Errorf("what is read of it is %q", got)
	}
	if again := WithEnvironment(file, env); string(again) != want {
		t.Errorf("again:\n%s", again)
	}
}
