package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/test/golden"
)

// write makes files below a new directory and returns the path of config.toml there.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "config.toml")
}

func load(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Load(Flags{Path: write(t, map[string]string{"config.toml": text}), PathSet: true})
	if err != nil {
		t.Fatal(err)
	}
	c.where = nil
	return c
}

func TestDefaultRoundTrips(t *testing.T) {
	if got := load(t, Default().TOML()); !reflect.DeepEqual(got, Default()) {
		t.Errorf("Default().TOML() loads as\n%+v\nwanted\n%+v", got, Default())
	}
	if got := load(t, ""); !reflect.DeepEqual(got, Default()) {
		t.Errorf("an empty file loads as\n%+v", got)
	}
}

// full sets every key, and none to its default.
const full = `
root = "/srv/berth"
state = "/run/b2"
socket = "/run/b2/x.sock"
log_level = "debug"
log_format = "json"
known_holes = "refuse"
cgroup_names = "crio"
cgroup_favor_dynmods = true
crio_socket = "/var/run/crio/crio.sock"
[cni]
config_dir = "/a \"quoted\" \u0007 dir"
plugin_dirs = ["/p1"]
pod_cidr_template = "/etc/berth/cni.tmpl"
add_timeout = "90s"
del_timeout = "1m1s"
[cdi]
spec_dirs = ["/cdi"]
[registry]
config_dir = "/certs"
[images]
root = "/images"
max_concurrent_downloads = 3
max_pull_layers = 2
max_layer_connections = 5
stall_timeout = "7s"
first_byte_timeout = "6m"
foreign_layer_urls = true
possession = "registry"
max_buffer_bytes = 6_000_000_000
gunzip = "/opt/igzip"
max_layers = 11
max_manifest_bytes = 12
max_config_bytes = 13
max_image_bytes = 6_000_000_000
max_layer_bytes = 5_000_000_000
max_layer_entries = 15
max_layer_memory_bytes = 1600
min_free_percent = 17
unpack = "process"
unpacker = "/opt/berth-unpack"
pinned = ["registry.example/pause:1", "a*"]
preload_dir = "/images.d"
preload_pinned = false
[image_verifier]
dir = "/verifiers"
max = 4
timeout = "3s"
[nri]
enable = true
socket = "/nri.sock"
plugin_dir = "/nri.d"
config_dir = "/nri.conf"
registration_timeout = "8s"
request_timeout = "9s"
synchronization_timeout = "7s"
[nri.validator]
enable = true
required_plugins = ["balloons"]
tolerate_missing_plugins_annotation = "example.com/tolerate"
reject_oci_hook_adjustment = true
reject_namespace_adjustment = true
reject_sysctl_adjustment = true
reject_runtime_default_seccomp_adjustment = true
reject_unconfined_seccomp_adjustment = true
reject_custom_seccomp_adjustment = true
[runtimes]
default = "fast"
[runtimes.fast]
path = "/usr/bin/crun"
driver = "oci-infra"
args = ["--platform=ptrace"]
init = true
base_spec = "/etc/berth/base.json"
pids_limit = 9
seccomp.socketcall = "deny"
storage_size = 3_000_000_000
storage_inodes = 65
max_storage_size = 5_000_000_000
max_storage_inodes = 66
storage_without_quota = "refuse"
log_rate = 100_000
log_burst = 200_000
max_log_rate = 300_000
max_log_burst = 400_000
create_timeout = "8s"
privileged_without_host_devices = true
cgroup_writable = true
device_ownership_from_security_context = true
pod_annotations = ["io.example.*"]
container_annotations = ["x"]
[runtimes."0-9"]
path = "/usr/sbin/runc"
[streaming]
address = "node-1"
port = 10010
cert = "/tls/crt"
key = "/tls/key"
idle_timeout = "8s"
max_waiting = 9
max_sessions = 19
max_target_sessions = 5
[monitor]
path = "/opt/berth-monitor"
[pods]
unprivileged_ports = false
unprivileged_icmp = false
[limits]
pids = 77
[timeouts]
runtime_create = "5s"
create_abandon = "6s"
[metrics]
address = "127.0.0.1:9423"
`

func TestEveryKeyArrivesAndRoundTrips(t *testing.T) {
	got, on := load(t, full), true
	want := &Config{
		Root: "/srv/berth", State: "/run/b2", Socket: "/run/b2/x.sock", LogLevel: "debug", LogFormat: "json",
		KnownHoles: "refuse", CgroupNames: "crio", CgroupFavorDynmods: true, CRIOSocket: "/var/run/crio/crio.sock",
		CNI: CNI{"/a \"quoted\" \a dir", []string{"/p1"}, "/etc/berth/cni.tmpl", Duration{90 * time.Second},
			Duration{61 * time.Second}},
		CDI:      CDI{SpecDirs: []string{"/cdi"}},
		Registry: Registry{"/certs"},
		Images: Images{
			"/images", 3, 2, 5, Duration{7 * time.Second}, Duration{6 * time.Minute}, true, "registry", 6_000_000_000,
			"/opt/igzip",
			[]string{"registry.example/pause:1", "a*"}, "/images.d", false, 11, 12, 13, 6_000_000_000, 5_000_000_000, 15, 1600,
			17, "process", "/opt/berth-unpack",
		},
		Verifier: Verifier{"/verifiers", 4, Duration{3 * time.Second}},
		NRI: NRI{&on, "/nri.sock", "/nri.d", "/nri.conf", Duration{8 * time.Second}, Duration{9 * time.Second},
			Duration{7 * time.Second}, Validator{
				true, []string{"balloons"}, "example.com/tolerate", true, true, true, true, true, true,
			}},
		Runtimes: Runtimes{"fast", map[string]Handler{
			"fast": {
				Path: "/usr/bin/crun", Driver: "oci-infra", Args: []string{"--platform=ptrace"}, Init: true,
				BaseSpec: "/etc/berth/base.json", PidsLimit: 9, Socketcall: "deny",
				CreateTimeout:                Duration{8 * time.Second},
				PrivilegedWithoutHostDevices: true, CgroupWritable: true, DeviceOwnershipFromSecurityContext: true,
				PodAnnotations: []string{"io.example.*"}, ContainerAnnotations: []string{"x"},
				StorageSize: 3_000_000_000, StorageInodes: 65, MaxStorageSize: 5_000_000_000, MaxStorageInodes: 66,
				LogRate: 100_000, LogBurst: 200_000, MaxLogRate: 300_000, MaxLogBurst: 400_000,
				StorageWithoutQuota: "refuse",
			},
			"0-9": {Path: "/usr/sbin/runc", Driver: "oci", Socketcall: "allow", StorageWithoutQuota: "watch"},
		}},
		Streaming: Streaming{"node-1", 10010, "/tls/crt", "/tls/key", Duration{8 * time.Second}, 9, 19, 5},
		Monitor:   Monitor{"/opt/berth-monitor"},
		Pods:      Pods{},
		Limits: Limits{Pids: 77, Connections: 1024, Calls: 16384, Execs: 8192, Pulls: 2048, RequestBytes: 8 << 20,
			RequestEntries: 65536, LabelBytes: 512 << 10},
		Timeouts: Timeouts{Duration{5 * time.Second}, Duration{6 * time.Second}},
		Metrics:  Metrics{"127.0.0.1:9423"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("loaded\n%+v\nwanted\n%+v", got, want)
	}
	if again := load(t, got.TOML()); !reflect.DeepEqual(again, want) {
		t.Errorf("printed\n%s\nand loaded\n%+v", got.TOML(), again)
	}
}

func TestLaterWins(t *testing.T) {
	path := write(t, map[string]string{
		"config.toml": "log_level = \"warn\"\n[cni]\nplugin_dirs = [\"/1\", \"/2\"]\n[runtimes.r]\npath = \"/r\"\n" +
			"pod_annotations = [\"a\", \"b\"]\n",
		"conf.d/20-b.toml": "log_level = \"debug\"\nroot = \"/from/drop-in\"\n",
		"conf.d/10-a.toml": "log_level = \"error\"\n[cni]\nplugin_dirs = [\"/3\"]\n[runtimes]\ndefault = \"r\"\nr = " +
			"{pod_annotations = [\"c\"]}\n",
		"conf.d/30-c.disabled": "nonsense",
		"conf.d/.40-d.toml":    "nonsense",
	})
	c, err := Load(Flags{Path: path, PathSet: true, Root: "/from/flag", LogLevel: ""})
	if err != nil {
		t.Fatal(err)
	}
	if c.LogLevel != "debug" || c.Root != "/from/flag" || !reflect.DeepEqual(c.CNI.PluginDirs, []string{"/3"}) {
		t.Errorf("level %s, root %s, plugins %v", c.LogLevel, c.Root, c.CNI.PluginDirs)
	}
	want := Handler{
		Path: "/r", Driver: DriverOCI, Socketcall: SocketcallAllow, StorageWithoutQuota: StorageWatch,
		PodAnnotations: []string{"c"},
	}
	if c.Runtimes.Default != "r" || !reflect.DeepEqual(c.Runtimes.Handlers["r"], want) {
		t.Errorf("runtimes %+v", c.Runtimes)
	}
	if def := Default(); !reflect.DeepEqual(def.CNI.PluginDirs, []string{"/opt/cni/bin", "/usr/lib/cni"}) {
		t.Errorf("the default changed to %v", def.CNI.PluginDirs)
	}
}

func TestMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if c, err := Load(Flags{Path: path}); err != nil || c.TOML() != Default().TOML() {
		t.Errorf("a missing default file gave %+v, %v", c, err)
	}
	_, err := Load(Flags{Path: path, PathSet: true})
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing --config file gave %v", err)
	}
}

func TestRefusals(t *testing.T) {
	long := "/" + strings.Repeat("s", 107)
	const label = "up to 63 of a-z, 0-9 and, between them, - can, as in a RuntimeClass"
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":        {"\nlog_levle = \"info\"\n", "F:2: log_levle: unknown key"},
		"unknown in table":   {"[cni]\nconfig_dri = \"/x\"\n", "F:2: cni.config_dri: unknown key"},
		"unknown table":      {"root = \"/r\"\n[network]\nx = 1\n", "F:2: network: unknown key"},
		"unknown in handler": {"[runtimes.runc]\npath = \"/r\"\npaht = \"/r\"\n", "F:3: runtimes.runc.paht: unknown key"},
		"unknown below": {"[runtimes.runc]\npath = \"/r\"\nseccomp.sockets = \"deny\"\n",
			"F:3: runtimes.runc.seccomp.sockets: unknown key"},
		"no table below": {"[runtimes.runc]\npath = \"/r\"\nseccomp = \"deny\"\n",
			"F:3: runtimes.runc.seccomp: must be a table, [runtimes.runc.seccomp]"},
		"bad below": {"[runtimes.runc]\npath = \"/r\"\n[runtimes.runc.seccomp]\nsocketcall = \"no\"\n",
			"F:4: runtimes.runc.seccomp.socketcall: "},
		"unknown inline": {"[runtimes]\n\nrunc = {path = \"/r\", no = 1}\n", "F:3: runtimes.runc.no: unknown key"},
		"unknown in runtimes": {"[runtimes]\ndefualt = \"runc\"\n", "F:2: runtimes.defualt: unknown key; a handler is a " +
			"table [runtimes.defualt]"},
		"array of handlers": {"[[runtimes.runc]]\npath = \"/r\"\n", "F:1: runtimes.runc: unknown key; a handler is a " +
			"table [runtimes.runc]"},
		"wrong type": {"[cni]\n\nplugin_dirs = 7\n", "F:3: cni.plugin_dirs: must be a list of strings, such as " +
			"[\"a\", \"b\"]"},
		"string for number": {"[images]\nmax_concurrent_downloads = \"3\"\n", "F:2: images.max_concurrent_downloads: " +
			"must be a whole number without quotes"},
		"default not a string": {"[runtimes]\ndefault = 1\n", "F:2: runtimes.default: must be a string, the name of a " +
			"handler"},
		"handler path number": {"[runtimes.runc]\n\npath = 1\n", "F:3: runtimes.runc.path: must be a string in quotes"},
		"number for duration": {"[cni]\nadd_timeout = 5\n", "F:2: cni.add_timeout: must be a duration in quotes, such as " +
			"\"90s\" or \"2m\""},
		"table for duration": {"[cni.add_timeout]\n", "F:1: cni.add_timeout: must be a duration in quotes, such as \"90s\" " +
			"or \"2m\""},
		"bad duration": {"[cni]\nadd_timeout = \"soon\"\n", "F:2: cni.add_timeout: \"soon\" is not a duration such " +
			"as \"90s\" or \"2m\""},
		"negative duration": {"[cni]\nadd_timeout = \"-5s\"\n", "F:2: cni.add_timeout: -5s is not more than nothing"},
		"zero duration": {"[timeouts]\nruntime_create = \"0s\"\n", "F:2: timeouts.runtime_create: 0s is not more than " +
			"nothing"},
		"no downloads": {"[images]\nmax_pull_layers = -1\n", "F:2: images.max_pull_layers: -1 is not between 0 " +
			"and 1000"},
		"no layers": {"[images]\nmax_layers = 0\n", "F:2: images.max_layers: 0 is not between 1 and 100000"},
		"a manifest of a GB": {"[images]\n\nmax_manifest_bytes = 2000000000\n", "F:3: images.max_manifest_bytes: " +
			"2000000000 is not between 1 and 1073741824"},
		"no connections": {"[images]\nmax_layer_connections = 65\n", "F:2: images.max_layer_connections: 65 is not between " +
			"1 and 64"},
		"a gunzip by name": {"[images]\ngunzip = \"igzip\"\n",
			`F:2: images.gunzip: "igzip" is none of auto, never and an absolute path`},
		"no buffers": {"[images]\nmax_buffer_bytes = 0\n", "F:2: images.max_buffer_bytes: 0 is not between 1 and " +
			"1099511627776"},
		"never stalled": {"[images]\nstall_timeout = \"0s\"\n", "F:2: images.stall_timeout: 0s is not more than " +
			"nothing"},
		"word for NRI": {"[nri]\nenable = \"auto\"\n", "F:2: nri.enable: must be true or false"},
		"no time to be shown": {"[nri]\nsynchronization_timeout = \"0s\"\n", "F:2: nri.synchronization_timeout: 0s is not " +
			"more than nothing"},
		"no verifiers": {"[image_verifier]\nmax = 0\n", "F:2: image_verifier.max: 0 is not between 1 and 1000"},
		"no time to verify": {"[image_verifier]\ntimeout = \"-1s\"\n", "F:2: image_verifier.timeout: -1s is not more " +
			"than nothing"},
		"relative verifiers": {"[image_verifier]\ndir = \"verify.d\"\n", "F:2: image_verifier.dir: \"verify.d\" is not " +
			"an absolute path"},
		"streams nowhere": {"[streaming]\naddress = \"\"\n", "F:2: streaming.address: is empty; 0.0.0.0 and :: are " +
			"all addresses of the node"},
		"a port in an address": {"[streaming]\naddress = \"node:80\"\n", "F:2: streaming.address: \"node:80\" is neither " +
			"an IP address nor a name; the port is streaming.port"},
		"no such port": {"[streaming]\nport = 65536\n", "F:2: streaming.port: 65536 is not between 0 and 65535"},
		"half of TLS": {"[streaming]\nkey = \"/k\"\n", "F:2: streaming.key: TLS needs both, streaming.cert and " +
			"streaming.key"},
		"relative certificate": {"[streaming]\ncert = \"crt\"\n", "F:2: streaming.cert: \"crt\" is not an absolute path"},
		"never idle": {"[streaming]\nidle_timeout = \"0s\"\n", "F:2: streaming.idle_timeout: 0s is not more than " +
			"nothing"},
		"relative images": {"[images]\nroot = \"images\"\n", "F:2: images.root: \"images\" is not an absolute path"},
		"images in state": {"[images]\nroot = \"/run/berth/images\"\n", "F:2: images.root: \"/run/berth/images\" and " +
			"state \"/run/berth\" must be apart: neither may hold the other"},
		"state in images": {"[images]\nroot = \"/run\"\n", "F:2: images.root: \"/run\" and state \"/run/berth\" must " +
			"be apart: neither may hold the other"},
		"images are root": {"[images]\nroot = \"/var/lib/berth\"\n", "F:2: images.root: \"/var/lib/berth\" and root " +
			"\"/var/lib/berth\" must be apart, but that images.root may be \"/var/lib/berth/images\""},
		"images hold root": {"[images]\nroot = \"/var/lib\"\n", "F:2: images.root: \"/var/lib\" and root " +
			"\"/var/lib/berth\" must be apart, but that images.root may be \"/var/lib/berth/images\""},
		"images among pods": {"[images]\nroot = \"/var/lib/berth/pods\"\n", "F:2: images.root: \"/var/lib/berth/pods\" " +
			"and root \"/var/lib/berth\" must be apart, but that images.root may be \"/var/lib/berth/images\""},
		"socket is images": {"socket = \"/i\"\n[images]\nroot = \"/i\"\n", "F:1: socket: \"/i\" is a directory"},
		"negative pids":    {"[limits]\npids = -1\n", "F:2: limits.pids: -1 is negative; 0 is no limit"},
		"empty pin":        {"[images]\npinned = [\"\"]\n", "F:2: images.pinned: holds an empty reference"},
		"relative path":    {"root = \"var/lib\"\n", "F:1: root: \"var/lib\" is not an absolute path"},
		"unclean path":     {"root = \"/var/../lib/\"\n", "F:1: root: write \"/var/../lib/\" as \"/lib\""},
		"empty path":       {"state = \"\"\n", "F:1: state: is empty"},
		"whole machine":    {"root = \"/\"\n", "F:1: root: cannot be the root directory of the machine"},
		"relative plugin dir": {"[cni]\nplugin_dirs = [\"/a\", \"b\"]\n", "F:2: cni.plugin_dirs: \"b\" is not an " +
			"absolute path"},
		"no plugin dirs": {"[cni]\nplugin_dirs = []\n", "F:2: cni.plugin_dirs: is empty: without plugins there is no " +
			"network"},
		"root is state": {"root = \"/x\"\nstate = \"/x\"\n", "F:2: state: state \"/x\" and root \"/x\" must be " +
			"apart: neither may hold the other"},
		"root in state": {"root = \"/run/berth/root\"\n", "F:1: root: root \"/run/berth/root\" and state " +
			"\"/run/berth\" must be apart: neither may hold the other"},
		"log level":  {"log_level = \"loud\"\n", "F:1: log_level: \"loud\" is none of debug, info, warn, error"},
		"log format": {"log_format = \"xml\"\n", "F:1: log_format: \"xml\" is none of text, json"},
		"unknown default": {"[runtimes]\n\ndefault = \"nonesuch\"\n", "F:3: runtimes.default: there is no handler " +
			"\"nonesuch\": add [runtimes.nonesuch] with its path"},
		"empty default": {"[runtimes]\ndefault = \"\"\n", "F:2: runtimes.default: is empty; leave it out to have " +
			"the default probed"},
		"handler without path": {"\n[runtimes.runc]\n", "F:2: runtimes.runc: needs a path"},
		"handler relative": {"[runtimes.runc]\npath = \"runc\"\n", "F:2: runtimes.runc.path: \"runc\" is not an " +
			"absolute path"},
		"driver": {"[runtimes.x]\npath = \"/r\"\ndriver = \"shim\"\n", "F:3: runtimes.x.driver: \"shim\" is " +
			"none of oci, oci-infra"},
		"runtime command": {"[runtimes.x]\npath = \"/r\"\nargs = [\"run\"]\n", "F:3: runtimes.x.args: \"run\" is no " +
			"option: write one with its value as \"--option=value\""},
		"runtime root": {"[runtimes.x]\npath = \"/r\"\nargs = [\"-x\", \"-root=/x\"]\n", "F:3: runtimes.x.args: " +
			"\"-root=/x\" is the daemon's to say"},
		"relative base spec": {"[runtimes.x]\npath = \"/r\"\nbase_spec = \"b.json\"\n", "F:3: runtimes.x.base_spec: " +
			"\"b.json\" is not an absolute path"},
		"many pids": {"[limits]\npids = 4194305\n", "F:2: limits.pids: 4194305 is more than 4194304, which is all that the " +
			"kernel has"},
		"handler's many pids": {"[runtimes.x]\npath = \"/r\"\npids_limit = 10000000\n", "F:3: runtimes.x.pids_limit: " +
			"10000000 is more than 4194304, which is all that the kernel has"},
		"handler pids": {"[runtimes.x]\npath = \"/r\"\npids_limit = -2\n", "F:3: runtimes.x.pids_limit: -2 is less " +
			"than -1, which is no limit"},
		"handler timeout": {"[runtimes.x]\npath = \"/r\"\ncreate_timeout = \"-1s\"\n",
			"F:3: runtimes.x.create_timeout: -1s is less than nothing"},
		"handler name": {"[runtimes.\"../x\"]\npath = \"/r\"\n", "F:1: runtimes.../x: \"../x\" cannot name a " +
			"handler: " + label},
		"handler with dot": {"[runtimes.\"run.c\"]\npath = \"/r\"\n", "F:1: runtimes.run.c: \"run.c\" cannot name a " +
			"handler: " + label},
		"handler in capitals": {"[runtimes.Runc]\npath = \"/r\"\n", "F:1: runtimes.Runc: \"Runc\" cannot name a handler: " +
			label},
		"handler underscore": {"[runtimes.a_b]\npath = \"/r\"\n", "F:1: runtimes.a_b: \"a_b\" cannot name a handler: " +
			label},
		"handler dash last": {"[runtimes.a-]\npath = \"/r\"\n", "F:1: runtimes.a-: \"a-\" cannot name a handler: " + label},
		"handler long": {"[runtimes." + long[1:65] + "]\npath = \"/r\"\n", "F:1: runtimes." + long[1:65] + ": \"" +
			long[1:65] + "\" cannot name a handler: " + label},
		"long socket": {"socket = \"" + long + "\"\n", "F:1: socket: is 108 bytes long; the kernel allows a " +
			"socket 107"},
		"socket is state": {"socket = \"/run/berth\"\n", "F:1: socket: \"/run/berth\" is a directory"},
		"not TOML":        {"root = \"/r\"\n[cni\n", "F:2: expected ']' to close table name"},
		"mixed list": {"[cni]\nplugin_dirs = [\"/a\", 1]\n", "F:2: cni.plugin_dirs: must be a list of strings, " +
			"such as [\"a\", \"b\"]"},
		"string for list": {"[images]\npinned = \"a\"\n", "F:2: images.pinned: must be a list of strings, such as " +
			"[\"a\", \"b\"]"},
		"string for boolean": {"[runtimes.runc]\npath = \"/r\"\nprivileged_without_host_devices = \"yes\"\n",
			"F:3: runtimes.runc.privileged_without_host_devices: must be true or false"},
		"fraction":           {"[limits]\npids = 1.5\n", "F:2: limits.pids: must be a whole number without quotes"},
		"number for string":  {"root = 5\n", "F:1: root: must be a string in quotes"},
		"date for string":    {"root = 2020-01-01\n", "F:1: root: must be a string in quotes"},
		"value for table":    {"\ncni = \"/etc/cni\"\n", "F:2: cni: must be a table, [cni]"},
		"value for runtimes": {"runtimes = 1\n", "F:1: runtimes: must be a table, [runtimes]"},
		"array of tables":    {"[[cni]]\n", "F:1: cni: must be a table, [cni]"},
		"inline unknown":     {"\ncni = {config_dri = \"/x\"}\n", "F:2: cni.config_dri: unknown key"},
		"inline wrong type": {"images = {max_layers = \"many\"}\n", "F:1: images.max_layers: must be a whole number " +
			"without quotes"},
		"inline bad duration": {"cni = {add_timeout = \"soon\"}\n", "F:1: cni.add_timeout: \"soon\" is not a duration such " +
			"as \"90s\" or \"2m\""},
		"inline twice inline": {"\nruntimes = {runc = {path = \"/r\", no = 1}}\n", "F:2: runtimes.runc.no: unknown key"},
		"inline bad value":    {"limits = {pids = -2}\n", "F:1: limits.pids: -2 is negative; 0 is no limit"},
		"dotted unknown":      {"\ncni.config_dri = \"/x\"\n", "F:2: cni.config_dri: unknown key"},
		"another case":        {"Root = \"/x\"\n", "F:1: Root: unknown key"},
		"first of several":    {"state = 1\nroot = 2\n", "F:1: state: must be a string in quotes"},
		"inline set twice": {"\ncni = {config_dir = \"/a\", config_dir = \"/b\"}\n", "F:2: cni: key config_dir is " +
			"already defined"},
		"set twice": {"root = \"/r\"\nroot = \"/s\"\n", "F:2: root: "},

		"little storage": {"[runtimes.x]\npath = \"/r\"\nstorage_size = 4096\n",
			"F:3: runtimes.x.storage_size: 4096 is too little to make a container in: at least 1048576, or 0"},
		"few files": {"[runtimes.x]\npath = \"/r\"\nmax_storage_inodes = 1\n",
			"F:3: runtimes.x.max_storage_inodes: 1 is too little to make a container in: at least 64, or 0"},
		"negative storage": {"[runtimes.x]\npath = \"/r\"\nstorage_inodes = -1\n",
			"F:3: runtimes.x.storage_inodes: -1 is not between 0 and 1152921504606846976"},
		"a slow log": {"[runtimes.x]\npath = \"/r\"\nlog_rate = 1000\n",
			"F:3: runtimes.x.log_rate: 1000 is too little: at least 1024, or 0"},
		"a small burst": {"[runtimes.x]\npath = \"/r\"\nmax_log_burst = 1024\n",
			"F:3: runtimes.x.max_log_burst: 1024 is too little: at least 65536, or 0"},
		"without quota": {"[runtimes.x]\npath = \"/r\"\nstorage_without_quota = \"ignore\"\n",
			"F:3: runtimes.x.storage_without_quota: \"ignore\" is none of watch, refuse"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, map[string]string{"config.toml": c.text})
			_, err := Load(Flags{Path: path, PathSet: true})
			if err == nil {
				t.Fatal("accepted")
			}
			got := strings.ReplaceAll(err.Error(), path, "F")
			if got != c.want && !(strings.HasSuffix(c.want, " ") && strings.HasPrefix(got, c.want)) {
				t.Errorf("got    %s\nwanted %s", got, c.want)
			}
		})
	}
}

// TestAccepted has what looks wrong and is not.
func TestAccepted(t *testing.T) {
	long := "/run/" + strings.Repeat("s", 200)
	if c := load(t, "state = \""+long+"\"\n"); c.State != long {
		t.Errorf("a long state: %s", c.State)
	}
	for _, name := range []string{"crun", "runc"} {
		if c := load(t, "[runtimes]\ndefault = \""+name+"\"\n"); c.Runtimes.Default != name || len(c.Runtimes.Handlers) > 0 {
			t.Errorf("a default without a table: %+v", c.Runtimes)
		}
	}
	name := strings.Repeat("a", 63)
	if c := load(t, "[runtimes."+name+"]\npath = \"/r\"\n"); c.Runtimes.Handlers[name].Path != "/r" {
		t.Errorf("a handler of 63 letters: %+v", c.Runtimes)
	}
}

// TestBlame wants an error about a value at the file or flag that set it last.
func TestBlame(t *testing.T) {
	path := write(t, map[string]string{
		"config.toml":      "\nlog_level = \"loud\"\n",
		"conf.d/10-a.toml": "\n\nlog_level = \"louder\"\n",
	})
	_, err := Load(Flags{Path: path, PathSet: true})
	if want := filepath.Dir(path) + "/conf.d/10-a.toml:3: log_level: \"louder\""; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, wanted %s", err, want)
	}
	_, err = Load(Flags{Path: path, PathSet: true, LogLevel: "loudest"})
	if want := "--log-level: log_level: \"loudest\" is none of"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, wanted %s", err, want)
	}
}

func TestImagesRoot(t *testing.T) {
	for text, want := range map[string]string{
		"": "/var/lib/berth/images", "root = \"/r\"\n": "/r/images",
		"[images]\nroot = \"/var/lib/berth/images\"\n": "/var/lib/berth/images",
		"[images]\nroot = \"/mnt/images\"\n":           "/mnt/images",
	} {
		if got := load(t, text).ImagesRoot(); got != want {
			t.Errorf("%q: %s, wanted %s", text, got, want)
		}
	}
}

func TestInstance(t *testing.T) {
	for root, want := range map[string]string{"/var/lib/berth": "berth", "/srv/berth": "berth-5d7b4e"} {
		if got := (&Config{Root: root}).Instance(); got != want {
			t.Errorf("root %s: %s, wanted %s", root, got, want)
		}
	}
}

func TestMonitorPath(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "berth-monitor")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if got, err := Default().MonitorPath(); err != nil || filepath.Base(got) != "berth-monitor" {
		t.Errorf("on PATH: %q, %v", got, err)
	}
	c := &Config{Monitor: Monitor{Path: program}}
	if got, err := c.MonitorPath(); err != nil || got != program {
		t.Errorf("configured: %q, %v", got, err)
	}
	if err := os.Chmod(program, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.MonitorPath(); err == nil || !strings.Contains(err.Error(), "monitor.path") {
		t.Errorf("not executable: %v", err)
	}
}

// TestDocumentation wants the table of docs/configuration.md to be that of the keys.
func TestDocumentation(t *testing.T) {
	const path, head = "../../docs/configuration.md", "| key | default | meaning |\n|---|---|---|\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), head)
	_, after, ends := strings.Cut(rest, "\n\n")
	if !ok || !ends {
		t.Fatal("there is no table of keys")
	}
	var rows []string
	for _, k := range Keys() {
		rows = append(rows, k.Row())
	}
	golden.File(t, path, before+head+strings.Join(rows, "\n")+"\n\n"+after)
}

// TestDefaultFile wants the file that "berth config --default" prints, which packages install, to stay what it is
// unless somebody means to change it.
func TestDefaultFile(t *testing.T) { golden.File(t, "testdata/default.toml", Default().TOML()) }

// TestKeysArePrinted wants every key in a table that is printed, and every row to say what it has to.
func TestKeysArePrinted(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range keys {
		table, name := k.table()
		if !slices.Contains(tables, table) || seen[k.name] || name == "" || k.meaning == "" {
			t.Errorf("%s: in the table %q, there twice: %v, meaning %q", k.name, table, seen[k.name], k.meaning)
		}
		seen[k.name] = true
	}
	for _, k := range handlerKeys {
		if seen[k.name] || k.name == "" || k.meaning == "" || isTable(keys, k.name) {
			t.Errorf("%s of a handler: there twice: %v, meaning %q", k.name, seen[k.name], k.meaning)
		}
	}
}

// TestEveryKeyIsExplained wants a comment above every key that "berth config" prints, or above the group that it is in.
func TestEveryKeyIsExplained(t *testing.T) {
	c := Default()
	c.Runtimes.Default, c.Runtimes.Handlers["runc"] = "runc", Handler{Path: "/r"}
	explained := false
	for l := range strings.Lines(c.TOML()) {
		switch {
		case strings.HasPrefix(l, "#"):
			explained = true
		case strings.HasPrefix(l, "["):
			explained = false
		case strings.Contains(l, " = ") && !explained:
			t.Errorf("nothing says what this is: %s", l)
		}
	}
}

// TestDownloadsByCores has as many layers be fetched at once as suit a machine, unless the configuration says how many.
func TestDownloadsByCores(t *testing.T) {
	for cores, want := range map[int][2]int{1: {8, 4}, 2: {8, 4}, 6: {12, 6}, 16: {32, 16}, 256: {64, 32}} {
		i := Default().Images
		if got := [2]int{i.Downloads(cores), i.PullLayers(cores)}; got != want {
			t.Errorf("%d cores: %v, want %v", cores, got, want)
		}
		i.MaxConcurrentDownloads, i.MaxPullLayers = 3, 2
		if i.Downloads(cores) != 3 || i.PullLayers(cores) != 2 {
			t.Errorf("%d cores: what is configured is not used", cores)
		}
	}
}
