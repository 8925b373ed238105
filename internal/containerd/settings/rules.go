package settings

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rule says what becomes of a setting.
type rule struct {
	key   string // as setting.matches has it
	usual []any  // what containerd has unless told otherwise, of which nothing is said
	why   string // it is not carried over; empty and no take: it means nothing to others than containerd
	take  func(c *conversion, s setting)
}

// rules are looked through in their order, and the first that matches counts.
var rules = []rule{
	{key: "version"}, {key: "imports"}, {key: "required_plugins"}, {key: "plugin_dir"}, {key: "temp"},
	{key: "root", usual: []any{"/var/lib/containerd"}, why: "Berth has a root of its own; name this one with " +
		"--root to take its images over"},
	{key: "state", usual: []any{"/run/containerd"}, why: "Berth has its own"},
	{key: "disabled_plugins"}, // disabled has looked at it
	{key: "oom_score", usual: []any{int64(0), int64(-999)}, why: "it is OOMScoreAdjust in the unit of Berth"},
	{key: "debug.level", usual: []any{"", "info"}, take: logLevel},
	{key: "debug.format", usual: []any{"", "text"}, take: logFormat},
	{key: "debug.**", why: "Berth answers berth debug over its own socket"},
	{key: "log_trace_id"},
	{key: "grpc.address", usual: []any{"/run/containerd/containerd.sock"}, take: otherSocket},
	{key: "grpc.max_recv_message_size", usual: []any{int64(16 << 20)}, why: "Berth's is limits.request_bytes"},
	{key: "grpc.max_send_message_size", usual: []any{int64(16 << 20)}, why: "Berth's is no setting"},
	{key: "grpc.**", why: "Berth serves CRI at a unix socket of root's alone"},
	{key: "ttrpc.**"},
	{key: "metrics.address", take: metrics},
	{key: "metrics.**", why: "Berth has no such metrics"},
	{key: "cgroup.path", why: "the unit of Berth says where the daemon is"},
	{key: "timeouts.**", usual: []any{"0s", "1m0s", "2s", "3s", "5s"}, why: "Berth has timeouts of its own, under " +
		"[timeouts]"},
	{key: "stream_processors.**", take: processors},
	{key: "proxy_plugins.**", why: "Berth has one image store of its own, on overlayfs"},

	{key: "nri.disable", take: nri},
	{key: "nri.socket_path", usual: []any{"/var/run/nri/nri.sock"}, take: path("nri.socket")},
	{key: "nri.plugin_path", usual: []any{"/opt/nri/plugins"}, take: path("nri.plugin_dir")},
	{key: "nri.plugin_config_path", usual: []any{"/etc/nri/conf.d"}, take: path("nri.config_dir")},
	{key: "nri.plugin_registration_timeout", usual: []any{"5s"}, take: duration("nri.registration_timeout")},
	{key: "nri.plugin_request_timeout", usual: []any{"2s"}, take: duration("nri.request_timeout")},
	{key: "nri.disable_connections", take: func(c *conversion, s setting) {
		if s.value == true {
			c.become(s, "nri.socket", "")
		}
	}},
	{key: "nri.default_validator.required_plugins", take: names("nri.validator.required_plugins")},
	{key: "nri.default_validator.tolerate_missing_plugins_annotation", take: anyText(
		"nri.validator.tolerate_missing_plugins_annotation")},
	{key: "nri.default_validator.*", usual: []any{false}, take: validator},
	{key: "nri.default_validator.**", why: "the validator of Berth has no such setting"},

	{key: "verifier.bin_dir", usual: []any{verifiers}, take: path("image_verifier.dir")},
	{key: "verifier.max_verifiers", usual: []any{int64(10)}, take: number("image_verifier.max", 1, 1000)},
	{key: "verifier.per_verifier_timeout", usual: []any{"10s"}, take: duration("image_verifier.timeout")},

	{key: "cri.containerd.default_runtime_name", take: func(c *conversion, s setting) { c.runtimes.usual = s }},
	{key: "cri.containerd.runtimes.**", take: func(c *conversion, s setting) { c.runtimes.take(s) }},
	{key: "cri.containerd.default_runtime.**", why: "name the runtime in [runtimes.<name>] and runtimes.default"},
	{key: "cri.containerd.untrusted_workload_runtime.**", why: "name it in [runtimes.<name>], and have pods ask for " +
		"it by a RuntimeClass"},
	{key: "cri.containerd.no_pivot", why: "containers always get a root that was pivoted to"},
	{key: "cri.containerd.discard_unpacked_layers"}, // Berth keeps none
	{key: "cri.discard_unpacked_layers"},
	{key: "cri.containerd.disable_snapshot_annotations"}, {key: "cri.disable_snapshot_annotations"},
	{key: "cri.containerd.ignore_blockio_not_enabled_errors"}, {key: "cri.containerd.ignore_rdt_not_enabled_errors"},
	{key: "cri.containerd.snapshotter", usual: []any{"overlayfs"}, why: oneStore},
	{key: "cri.snapshotter", usual: []any{"overlayfs"}, why: oneStore},
	{key: "cri.runtime_platforms.**", why: oneStore},

	{key: "cri.sandbox_image", why: noPause}, {key: "cri.pinned_images.**", why: noPause},
	{key: "cri.systemd_cgroup", take: func(c *conversion, s setting) {
		if s.value == true {
			c.become(s, "cgroup_driver", "systemd")
		}
	}},

	{key: "cri.cni.bin_dir", usual: []any{"/opt/cni/bin"}, take: func(c *conversion, s setting) {
		s.value = []any{s.value}
		pluginDirs(c, s)
	}},
	{key: "cri.cni.bin_dirs", take: pluginDirs},
	{key: "cri.cni.conf_dir", usual: []any{"/etc/cni/net.d"}, take: path("cni.config_dir")},
	{key: "cri.cni.conf_template", take: path("cni.pod_cidr_template")},
	{key: "cri.cni.max_conf_num", usual: []any{int64(1)}, why: "a pod has one network, the first of cni.config_dir"},
	{key: "cri.cni.setup_serially", why: "the plugins of a network always run one after the other"},
	{key: "cri.cni.ip_pref", usual: []any{"ipv4"}, why: "the first address that the plugins give is the pod's"},
	{key: "cri.cni.use_internal_loopback"},

	{key: "cri.enable_selinux", take: labels},
	{key: "cri.selinux_category_range", usual: []any{int64(1024)}, why: "categories are any two of 1024"},
	{key: "cri.max_container_log_line_size", usual: []any{int64(16 << 10)}, why: "the longest entry of a log has 16 " +
		"KiB; a longer line is several entries"},
	{key: "cri.disable_apparmor", take: func(c *conversion, s setting) {
		if s.value == true {
			c.set("apparmor", "off")
			c.carry(s, "apparmor = 'off'", "containers that name no profile run without one, and those that ask for "+
				"RuntimeDefault are refused, as under containerd; a profile that a pod names is used where it is loaded")
		}
	}},
	{key: "cri.restrict_oom_score_adj", why: "the daemon runs as root, and may set any"},
	{key: "cri.disable_cgroup", why: "containers always have cgroups"},
	{key: "cri.disable_proc_mount", why: "the pod's procMount says it"},
	{key: "cri.unset_seccomp_profile", why: "a container without a profile has none; the kubelet's seccompDefault " +
		"gives all of them RuntimeDefault"},
	{key: "cri.tolerate_missing_hugetlb_controller", usual: []any{true}}, {key: "cri.disable_hugetlb_controller"},
	{key: "cri.device_ownership_from_security_context", take: func(c *conversion, s setting) {
		if s.value == true {
			c.runtimes.ownUsers = true
			c.carry(s, "device_ownership_from_security_context of each runtime", "")
		}
	}},
	{key: "cri.ignore_image_defined_volumes", why: "an image's volumes are directories of the container's root, and " +
		"take no room elsewhere"},
	{key: "cri.netns_mounts_under_state_dir"}, // Berth's always are
	{key: "cri.enable_unprivileged_ports", usual: []any{true}, take: boolean("pods.unprivileged_ports")},
	{key: "cri.enable_unprivileged_icmp", usual: []any{true}, take: boolean("pods.unprivileged_icmp")},
	{key: "cri.enable_cdi", usual: []any{true}}, // only who asks for devices gets some
	{key: "cri.cdi_spec_dirs", usual: []any{[]any{"/etc/cdi", "/var/run/cdi"}}, take: paths("cdi.spec_dirs")},
	{key: "cri.drain_exec_sync_io_timeout", usual: []any{"", "0s"}, why: "output that a command leaves open is " +
		"waited for 2 seconds"},
	{key: "cri.ignore_deprecation_warnings"}, {key: "cri.stats_collect_period"}, {key: "cri.stats_retention_period"},
	{key: "cri.enable_criu"},

	{key: "cri.max_concurrent_downloads", usual: []any{int64(3)}, take: number("images.max_pull_layers", 1, 1000)},
	// CRI pulls by the transfer service since 2.1, unless its own limit is set.
	{key: "transfer.max_concurrent_downloads", usual: []any{int64(3)}, take: number("images.max_pull_layers", 1, 1000)},
	{key: "transfer.**"},
	{key: "cri.concurrent_layer_fetch_buffer", why: "a large layer is fetched over several connections where that is " +
		"faster: images.max_layer_connections"},
	{key: "cri.image_pull_progress_timeout", usual: []any{"5m0s", "1m0s"}, take: duration("images.stall_timeout")},
	{key: "cri.image_pull_with_sync_fs"}, {key: "cri.use_local_image_pull"},
	{key: "cri.image_decryption.**", usual: []any{"node", ""}, why: "encrypted images cannot be unpacked"},

	{key: "cri.registry.**", take: func(c *conversion, s setting) { c.registries.take(s) }},

	{key: "cri.disable_tcp_service", usual: []any{true}},
	{key: "cri.stream_server_address", usual: []any{"", "127.0.0.1"}, take: streamAddress},
	{key: "cri.stream_server_port", usual: []any{"", "0"}, take: streamPort},
	{key: "cri.stream_idle_timeout", usual: []any{"4h0m0s"}, take: duration("streaming.idle_timeout")},
	{key: "cri.enable_tls_streaming", take: streamTLS},
	{key: "cri.x509_key_pair_streaming.**", take: streamTLS},

	{key: "plugins.*.**", take: plugin}, {key: "plugins"}, {key: "plugins.*"},
}

// usual are settings whose default in containerd is not what Berth does where the key that they become is left out.
// Those of first were so before containerd 2.0 alone.
var usual = []struct {
	key   string
	value any
	first bool
}{
	{key: "cri.enable_selinux", value: false},
	{key: "cri.enable_unprivileged_ports", value: false, first: true},
	{key: "cri.enable_unprivileged_icmp", value: false, first: true},
	{key: "nri.disable", value: true, first: true},
}

// isFirst reports whether a release is one before 2.0.
func isFirst(release string) bool {
	return strings.HasPrefix(release, "1.") || strings.HasPrefix(release, "0.")
}

// unsaid returns what is said nowhere in a configuration, as containerd has it then. Where nobody knows which
// containerd it is, it is taken for a later one, and that is noted.
func (c *conversion) unsaid(file string, all []setting, version int, release string) (out []setting) {
	for _, u := range usual {
		said := slices.ContainsFunc(all, func(s setting) bool { return s.matches(u.key) })
		if said || u.first && !isFirst(release) {
			continue
		}
		parts := strings.Split(u.key, ".")
		out = append(out, setting{file: file, parts: parts, written: parts[1:], value: u.value, unsaid: true})
	}
	if release == "" && version < 3 {
		c.notes = append(c.notes, Note{File: file, Key: "what it does not say", To: "as containerd 2 has it",
			Why: "one before 2.0 has NRI, unprivileged ports and unprivileged ICMP off (nri.enable, pods.unprivileged_ports, " +
				"pods.unprivileged_icmp)"})
	}
	return out
}

const (
	verifiers = "/opt/containerd/image-verifier/bin"

	oneStore = "Berth has one image store, on overlayfs"
	noPause  = "Berth has no pause container, and needs no image for one"
)

// otherPlugins say why what is set of plugins of containerd is not carried over, by the beginnings of their names. An
// empty reason is one of containerd's own making.
var otherPlugins = []struct{ name, why string }{
	{"io.containerd.snapshotter.", oneStore},
	{"io.containerd.service.v1.tasks-service", "Berth knows no classes of block I/O and caches"},
	{"io.containerd.tracing.", "Berth sends no traces"},
	{"io.containerd.server.v1.grpc-tcp", "Berth serves CRI at a unix socket alone"},
	{"io.containerd.server.v1.debug", "Berth answers berth debug over its own socket"},
}

// internalPlugins have nothing to say to others than containerd.
var internalPlugins = []string{
	"io.containerd.gc.", "io.containerd.internal.", "io.containerd.metadata.", "io.containerd.metrics.",
	"io.containerd.monitor.",
	"io.containerd.differ.", "io.containerd.mount-handler.", "io.containerd.runtime.", "io.containerd.service.",
	"io.containerd.shim.", "io.containerd.server.", "io.containerd.grpc.v1.introspection",
	"io.containerd.sandbox.", "io.containerd.lease.", "io.containerd.event.", "io.containerd.content.", "linux",
	"cgroups",
	"scheduler", "opt", "restart", "diff-service",
}

// plugin is a setting of a plugin that Berth has no counterpart of.
func plugin(c *conversion, s setting) {
	if s.isZero() || s.isOneOf([]any{"0s", []any{}}) {
		return
	}
	for _, p := range otherPlugins {
		if strings.HasPrefix(s.parts[1], p.name) {
			if !s.isOneOf([]any{int64(16 << 20)}) {
				c.drop(s, p.why)
			}
			return
		}
	}
	begins := func(name string) bool { return strings.HasPrefix(s.parts[1], name) }
	if !slices.ContainsFunc(internalPlugins, begins) {
		c.drop(s, "Berth has no such plugin")
	}
}

// disabled turns off in Berth what is turned off in containerd. What is set of such a plugin besides means nothing.
func disabled(c *conversion, s setting) {
	var others []any
	for _, name := range s.strings() {
		one := s
		one.value = []any{name}
		plugin := plugins[name]
		switch plugin {
		case "cri":
			c.drop(one, "no kubelet can have used this containerd: its CRI is off")
		case "nri":
			c.become(one, "nri.enable", false)
		case "verifier":
			c.carry(one, "no image_verifier.dir", "nobody is asked about images")
		case "metrics":
			c.carry(one, "no metrics.address", "")
		default:
			others = append(others, name)
		}
		if plugin != "cri" {
			c.off[plugin] = plugin != ""
		}
	}
	if s.value = others; !s.isZero() {
		c.drop(s, "Berth has none of these plugins")
	}
}

func processors(c *conversion, s setting) {
	if len(s.parts) > 1 && !strings.HasPrefix(s.parts[1], "io.containerd.ocicrypt.") && !s.isZero() {
		c.drop(s, "layers are unpacked by Berth alone")
	}
}

func otherSocket(c *conversion, s setting) {
	if !s.isZero() {
		c.drop(s, "Berth serves CRI at its own socket, which the kubelet and crictl are to be told")
	}
}

func logLevel(c *conversion, s setting) {
	level := map[string]string{
		"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error",
		"fatal": "error", "panic": "error",
	}[strings.ToLower(s.string())]
	if level == "" {
		c.drop(s, "there is no such level")
		return
	}
	c.become(s, "log_level", level)
}

func logFormat(c *conversion, s setting) {
	if s.value != "json" {
		c.drop(s, "there is text and json")
		return
	}
	c.become(s, "log_format", "json")
}

func metrics(c *conversion, s setting) {
	if s.isZero() {
		return
	}
	if _, _, err := net.SplitHostPort(s.string()); err != nil {
		c.drop(s, err.Error())
		return
	}
	c.set("metrics.address", s.string())
	c.carry(s, fmt.Sprintf("metrics.address = %s", literal(s.string())), "the metrics are others, at /metrics")
}

// labels are what SELinux knows containers by. Berth gives them where the kernel has SELinux on, unless it is told not
// to; told to, it starts nowhere else.
func labels(c *conversion, s setting) {
	switch {
	case s.value != true:
		c.set("selinux", "off")
		c.carry(s, "selinux = 'off'", "containers have no labels, as under containerd; without this key they have where the "+
			"kernel has SELinux on")
	case c.selinux:
		c.set("selinux", "on")
		c.carry(s, "selinux = 'on'", "where the kernel has SELinux off, or its policy knows no containers, the daemon does "+
			"not start, while containerd only warns; without this key it starts, and containers have labels where they can")
	default:
		c.drop(s, "this kernel has SELinux off; containers have labels as soon as it is on, and selinux = 'on' keeps the "+
			"daemon from starting where it is not")
	}
}

// nri is on in Berth unless it is configured otherwise, as in containerd from 2.0 on; in 1.7 it is off.
func nri(c *conversion, s setting) {
	if s.value == true {
		c.become(s, "nri.enable", false)
	}
}

// rejections are what the validator of NRI can refuse, by their keys.
var rejections = []string{
	"reject_oci_hook_adjustment", "reject_namespace_adjustment", "reject_sysctl_adjustment",
	"reject_runtime_default_seccomp_adjustment", "reject_unconfined_seccomp_adjustment",
	"reject_custom_seccomp_adjustment",
}

// validator carries over what containerd's validator of NRI refuses: Berth's is the same, with the same names.
func validator(c *conversion, s setting) {
	name := s.parts[len(s.parts)-1]
	if name != "enable" && !slices.Contains(rejections, name) {
		c.drop(s, "the validator of Berth has no such setting")
		return
	}
	boolean("nri.validator."+name)(c, s)
}

// names carries over a list of names.
func names(key string) func(*conversion, setting) {
	return func(c *conversion, s setting) {
		if all := s.strings(); len(all) > 0 {
			c.become(s, key, all)
		}
	}
}

// anyText carries over what may be any text.
func anyText(key string) func(*conversion, setting) {
	return func(c *conversion, s setting) {
		if !s.isZero() {
			c.become(s, key, s.string())
		}
	}
}

// finishVerifiers has the programs that containerd asks without being told to asked by Berth, too.
func finishVerifiers(c *conversion, file, dir string) {
	if c.off["verifier"] {
		return
	}
	if table, ok := c.tree["image_verifier"].(map[string]any); ok && table["dir"] != nil {
		return
	}
	if programs, err := os.ReadDir(dir); err == nil && len(programs) > 0 {
		c.become(setting{file: file, written: []string{"bin_dir"}, value: dir}, "image_verifier.dir", dir)
	}
}

func pluginDirs(c *conversion, s setting) {
	if slices.Equal(s.strings(), []string{"/opt/cni/bin"}) {
		return
	}
	paths("cni.plugin_dirs")(c, s)
}

// usable makes a path one that Berth takes.
func usable(p string) (string, bool) {
	p = filepath.Clean(p)
	return p, filepath.IsAbs(p) && p != "/"
}

// path carries a path over.
func path(key string) func(*conversion, setting) {
	return func(c *conversion, s setting) {
		if s.isZero() {
			return
		}
		p, ok := usable(s.string())
		if !ok {
			c.drop(s, "it is no absolute path")
			return
		}
		c.become(s, key, p)
	}
}

func paths(key string) func(*conversion, setting) {
	return func(c *conversion, s setting) {
		var out []string
		for _, one := range s.strings() {
			p, ok := usable(one)
			if !ok {
				c.drop(s, fmt.Sprintf("%q is no absolute path", one))
				return
			}
			out = append(out, p)
		}
		if len(out) > 0 {
			c.become(s, key, out)
		}
	}
}

func boolean(key string) func(*conversion, setting) {
	return func(c *conversion, s setting) {
		v, ok := s.value.(bool)
		if !ok {
			c.drop(s, "it is neither true nor false")
			return
		}
		c.become(s, key, v)
	}
}

func number(key string, least, most int64) func(*conversion, setting) {
	return func(c *conversion, s setting) {
		v, ok := s.value.(int64)
		if !ok || v < least || v > most {
			c.drop(s, fmt.Sprintf("%s is a whole number from %d to %d", key, least, most))
			return
		}
		c.become(s, key, v)
	}
}

func duration(key string) func(*conversion, setting) {
	return func(c *conversion, s setting) {
		if s.isZero() {
			return
		}
		d, err := time.ParseDuration(s.string())
		if err != nil || d <= 0 {
			c.drop(s, key+" is a time of more than nothing")
			return
		}
		c.become(s, key, d.String())
	}
}

func streamAddress(c *conversion, s setting) {
	if s.string() == "" {
		c.drop(s, "it is no address")
		return
	}
	c.become(s, "streaming.address", s.string())
}

func streamPort(c *conversion, s setting) {
	port, err := strconv.ParseUint(s.string(), 10, 16)
	if n, ok := s.value.(int64); ok && n >= 0 && n < 1<<16 {
		port, err = uint64(n), nil
	}
	if err != nil {
		c.drop(s, "it is no number of a port")
		return
	}
	if port > 0 {
		c.become(s, "streaming.port", int64(port))
	}
}

// streamTLS gathers what belongs together, for finishStreaming.
func streamTLS(c *conversion, s setting) {
	if s.value == true {
		c.stream["on"] = "true"
	}
	if text := s.string(); text != "" {
		c.stream[s.parts[len(s.parts)-1]] = text
	}
}

func finishStreaming(c *conversion, file string) {
	cert, okCert := usable(cmp.Or(c.stream["tls_cert_file"], "."))
	key, okKey := usable(cmp.Or(c.stream["tls_key_file"], "."))
	n := Note{File: file, Key: "enable_tls_streaming"}
	switch {
	case c.stream["on"] == "":
		return
	case okCert && okKey:
		c.set("streaming.cert", cert)
		c.set("streaming.key", key)
		n.To = fmt.Sprintf("streaming.cert = %s, streaming.key = %s", literal(cert), literal(key))
		n.Why = c.stays(cert, key)
	default:
		n.Why = "streaming.cert and streaming.key are to name a certificate, and Berth makes none"
	}
	c.notes = append(c.notes, n)
}
