package config

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
)

// keys is the table of all keys but those of handlers, in the order of the documentation. A new key is a row here, a
// field of Config that the row leads to, and the code that uses it.
var keys = slices.Concat([]key[Config]{
	{
		name: "root", restart: true,
		field:   of(func(c *Config) *string { return &c.Root }, path, defaultRoot),
		comment: "What outlives a boot: images, pods' records, containers' writable layers.",
		meaning: "what outlives a boot: images, records, writable layers. Another root is another, independent " +
			"Berth, with a state directory of its own; a start with another of the two is refused while pods of this boot " +
			"are there. At most 112 bytes, and none of `:`, `\\`, `*`, `?`, `[`, `]`",
	},
	{
		name: "state", restart: true,
		field:   of(func(c *Config) *string { return &c.State }, path, defaultState),
		comment: "What dies with a boot: sockets, mounts, namespace pins.",
		meaning: "what dies with a boot: sockets, mounts, namespace pins. Apart from `root`: neither may hold " +
			"the other",
	},
	{
		name: "socket", restart: true,
		field:   of(func(c *Config) *string { return &c.Socket }, path, defaultSocket),
		comment: "Where kubelets and `berth` commands speak to the daemon.",
		meaning: "where CRI is served, mode 0600; at most 107 bytes",
	},
	{
		name:    "log_level",
		field:   of(func(c *Config) *string { return &c.LogLevel }, oneOf("debug", "info", "warn", "error"), "info"),
		comment: "debug, info, warn or error.",
		meaning: "`debug`, `info`, `warn` or `error`",
	},
	{
		name: "log_format", restart: true,
		field:   of(func(c *Config) *string { return &c.LogFormat }, oneOf("text", "json"), "text"),
		comment: "text or json.",
		meaning: "`text` or `json`, one line an event, on stderr",
	},
	{
		name: "cgroup_driver", restart: true, unset: "probed",
		field: of(func(c *Config) *string { return &c.CgroupDriver }, oneOfOrEmpty("cgroupfs", "systemd"), ""),
		comment: "Who makes the cgroups: cgroupfs or systemd. Empty: systemd where it is the init, on cgroup " +
			"v2. Kubelets ask for it.",
		meaning: "`cgroupfs` or `systemd`: who makes the containers' cgroups; see " +
			"[runtimes](runtimes.md#cgroups). Kubelets ask for it (`RuntimeConfig`), older ones are told " +
			"by their own `cgroupDriver`. Change it on a node without pods",
	},
	{
		name: "cgroup_names", restart: true,
		field: of(func(c *Config) *string { return &c.CgroupNames },
			oneOf(NamesOwn, NamesContainerd, NamesCRIO), NamesOwn),
		comment: "How the cgroups of new containers are called: as Berth's own, or as those of containerd or crio, " +
			"by which agents know them.",
		meaning: "`berth`, `containerd` or `crio`: as whose the cgroups of new containers are called. Security " +
			"agents such as Falco know containers by these [names](runtimes.md#names-that-agents-know)",
	},
	{
		name: "cgroup_favor_dynmods", restart: true,
		field: of(func(c *Config) *bool { return &c.CgroupFavorDynmods }, boolean, false),
		comment: "Have the kernel move processes between cgroups without waiting: the option favordynmods of the node's " +
			"cgroup2 hierarchy. It stays when it is false again.",
		meaning: "has the kernel move processes between cgroups without waiting, for " +
			"[starts and execs](runtimes.md#starts-that-wait-for-the-kernel), by an option of the node's cgroup2 hierarchy. " +
			"The daemon never takes that option away",
	},
	{
		name: "crio_socket", restart: true, unset: "none",
		field: of(func(c *Config) *string { return &c.CRIOSocket }, optionalPath, ""),
		comment: "Where a kubelet's cAdvisor is told the names of containers, as by CRI-O: it looks at " +
			"/var/run/crio/crio.sock alone. Takes cgroup_names = \"crio\". Empty: nowhere.",
		meaning: "where a kubelet's [cAdvisor](kubernetes.md#names-for-cadvisor) is told the names of containers, as by " +
			"CRI-O; it looks at `/var/run/crio/crio.sock` alone. Takes `cgroup_names = \"crio\"`",
	},
	{
		name: "selinux", restart: true, unset: "probed",
		field: of(func(c *Config) *string { return &c.SELinux }, oneOfOrEmpty(SELinuxOn, SELinuxOff), ""),
		comment: "Whether containers get SELinux labels: on or off. Empty: on where the kernel has it and its " +
			"policy knows containers.",
		meaning: "`on` or `off`: whether containers get [SELinux](selinux.md) labels. Unless it is said: where " +
			"the kernel has SELinux on and its policy knows containers. With `on` the daemon starts " +
			"nowhere else",
	},
	{
		name: "apparmor", restart: true, unset: "probed",
		field:   of(func(c *Config) *string { return &c.AppArmor }, oneOfOrEmpty(AppArmorOff), ""),
		comment: "off: containers that name no AppArmor profile run without. Empty: under berth-default, where they can.",
		meaning: "`off`: containers that name no [AppArmor](apparmor.md) profile run without one, and those that ask for " +
			"`RuntimeDefault` are refused. Unless it is said: they run under `berth-default` where the kernel has AppArmor " +
			"and the node can load a profile",
	},
	{
		name:    "known_holes",
		field:   of(func(c *Config) *string { return &c.KnownHoles }, oneOf(HolesWarn, HolesRefuse), HolesWarn),
		comment: "Of runtimes from whose containers a way out is published: warn, or refuse new pods.",
		meaning: "`warn` or `refuse`: what becomes of new pods whose [runtime](runtimes.md) has a published way out of " +
			"its containers. `berth doctor` names them",
	},
	{
		name:    "cni.config_dir",
		field:   of(func(c *Config) *string { return &c.CNI.ConfigDir }, path, "/etc/cni/net.d"),
		comment: "The first configuration by name is the pods' network.",
		meaning: "CNI configurations; the first by name is the pods' network. Watched",
	},
	{
		name:    "cni.plugin_dirs",
		field:   of(func(c *Config) *[]string { return &c.CNI.PluginDirs }, paths, []string{"/opt/cni/bin", "/usr/lib/cni"}),
		comment: "Searched for plugins, in this order.",
		meaning: "searched for plugins, in this order",
	},
	{
		name: "cni.pod_cidr_template", unset: "none",
		field: of(func(c *Config) *string { return &c.CNI.PodCIDRTemplate }, optionalPath, ""),
		comment: "A template of a CNI configuration, written to config_dir when the kubelet tells the node's " +
			"pod CIDR. Empty: none.",
		meaning: "a template of a CNI configuration, written to `config_dir` when the kubelet tells the pod " +
			"CIDR",
	},
	{
		name:    "cni.add_timeout",
		field:   of(func(c *Config) *Duration { return &c.CNI.AddTimeout }, duration, seconds(90)),
		comment: "Of all plugins of a pod together; then they are killed with their children.",
		meaning: "for all plugins of a pod to attach it; then they are killed with their children",
	},
	{
		name:  "cni.del_timeout",
		field: of(func(c *Config) *Duration { return &c.CNI.DelTimeout }, duration, seconds(60)),
		meaning: "the same, each time that they run to detach it: more than once where they fail for long; detaching is " +
			"tried again later",
	},
	{
		name: "cdi.spec_dirs", restart: true,
		field: of(func(c *Config) *[]string { return &c.CDI.SpecDirs }, paths, []string{"/etc/cdi", "/var/run/cdi"}),
		comment: "Hold the files that describe devices (CDI); of two that describe the same one, the later " +
			"directory's counts.",
		meaning: "hold the files that describe devices of the Container Device Interface, read anew for each " +
			"container that asks for one; of two that describe the same device, the later directory's " +
			"counts",
	},
	{
		name:    "registry.config_dir",
		field:   of(func(c *Config) *string { return &c.Registry.ConfigDir }, optionalPath, "/etc/berth/certs.d"),
		comment: "Holds <host>/hosts.toml: mirrors, certificates, headers.",
		meaning: "holds `<host>/hosts.toml`: mirrors, plain http, certificates",
	},
	{
		name: "images.root", restart: true, unset: "images in the root",
		field:   of(func(c *Config) *string { return &c.Images.Root }, optionalPath, ""),
		comment: "Holds the images; may be on a file system of its own. Empty: images in the root.",
		meaning: "holds the image store; may be on a file system of its own. Apart from `state` and, but for " +
			"its usual place, from `root`",
	},
	{
		name: "images.max_concurrent_downloads", unset: "by cores",
		field:   of(func(c *Config) *int { return &c.Images.MaxConcurrentDownloads }, between("layers", 0, 1000), 0),
		comment: "Layers fetched at once, over all pulls, and for one. 0: as many as suit the cores.",
		meaning: "layers fetched at once, over all pulls, and from one registry; 1 to 1000. 0 is two for each core, 8 at " +
			"least and 64 at most. Registry hosts share them fairly; a layer of which a registry sends little needs none",
	},
	{
		name: "images.max_pull_layers", unset: "by cores",
		field:   of(func(c *Config) *int { return &c.Images.MaxPullLayers }, between("layers", 0, 1000), 0),
		meaning: "layers fetched at once for one pull; 1 to 1000. 0 is one for each core, 4 at least and 32 at most",
	},
	{
		name:    "images.max_layer_connections",
		field:   of(func(c *Config) *int { return &c.Images.MaxLayerConnections }, between("connections", 1, 64), 4),
		comment: "Connections of one large layer to its registry, where the network is what it waits for.",
		meaning: "connections of one large layer to its registry, where the network is what it waits for; 1 to " +
			"64",
	},
	{
		name:    "images.stall_timeout",
		field:   of(func(c *Config) *Duration { return &c.Images.StallTimeout }, duration, seconds(30)),
		comment: "A registry that sends next to nothing for so long is given up, and its next mirror tried.",
		meaning: "a registry that sends next to nothing for so long is given up, and its next mirror tried",
	},
	{
		name:    "images.first_byte_timeout",
		field:   of(func(c *Config) *Duration { return &c.Images.FirstByteTimeout }, duration, seconds(5*60)),
		comment: "A registry may take so long to begin to send a blob: a cache may fetch all of it first.",
		meaning: "how long a registry or mirror may take to begin to send a blob, because a cache may fetch all of it " +
			"first; then the next mirror is asked. `first_byte_timeout` in a hosts.toml goes before it",
	},
	{
		name:    "images.foreign_layer_urls",
		field:   of(func(c *Config) *bool { return &c.Images.ForeignLayerURLs }, boolean, false),
		comment: "Foreign layers that no registry has are fetched from where the manifest says.",
		meaning: "layers of a foreign media type that no registry has are fetched from the `urls` of the manifest; see " +
			"[registries](#registries)",
	},
	{
		name:    "images.possession",
		field:   of(func(c *Config) *string { return &c.Images.Possession }, oneOf("repository", "registry"), "repository"),
		comment: "Who must have served a blob itself before what the node has of it is used without a fetch.",
		meaning: "who must have served a blob itself before what the node has of it is used without a fetch: each " +
			"`repository`, or any one of a `registry`, where whoever may read one repository may read all; see " +
			"[registries](#registries)",
	},
	{
		name:    "images.max_buffer_bytes",
		field:   of(func(c *Config) *int64 { return &c.Images.MaxBufferBytes }, between[int64]("bytes", 1, 1<<40), 8<<20),
		comment: "Memory for what those connections fetch ahead, over all pulls.",
		meaning: "memory for what those connections fetch ahead, over all pulls (8 MiB). More connections than " +
			"one are kept only where they bring more bytes",
	},
	{
		name: "images.gunzip", restart: true,
		field:   of(func(c *Config) *string { return &c.Images.Gunzip }, gunzip, GunzipAuto),
		comment: "What inflates large gzip layers: auto is igzip where it is installed, never the library.",
		meaning: "what inflates large gzip layers: `auto`, igzip where it is installed (the package isal), `never`, " +
			"the library, or the path of an igzip; see [images](images.md#gzip-layers)",
	},
	{
		name: "images.pinned",
		field: of(func(c *Config) *[]string {
			return &c.Images.Pinned
		}, list.with("list of references, in which * stands for anything", func(v []string) string {
			if slices.Contains(v, "") {
				return "holds an empty reference"
			}
			return ""
		}), []string{}),
		comment: "References that garbage collection leaves alone; * stands for anything.",
		meaning: "references that garbage collection leaves alone; `*` stands for anything",
	},
	{
		name: "images.preload_dir", unset: "none",
		field: of(func(c *Config) *string { return &c.Images.PreloadDir }, optionalPath, ""),
		comment: "Holds images that are to be there: archives (.tar, .tar.gz, .tgz, .tar.zst, .tzst) and lists of names\n" +
			"to pull (.txt). Empty: there is no such directory.",
		meaning: "holds images that are to be there, archives and lists of names, which are taken in at the start and when " +
			"they change, such as `/var/lib/berth/images.d`; see [images](images.md#images-that-are-to-be-there)",
	},
	{
		name:    "images.preload_pinned",
		field:   of(func(c *Config) *bool { return &c.Images.PreloadPinned }, boolean, true),
		comment: "Garbage collection leaves the images of that directory alone, and they come again when they are removed.",
		meaning: "garbage collection leaves the images of that directory alone, and they come again when they are removed",
	},
	{
		name:  "images.max_layers",
		field: of(func(c *Config) *int { return &c.Images.MaxLayers }, between("layers", 1, 100_000), 500),
		comment: "An image that is larger is refused: its layers, a manifest or an index, its config,\n" +
			"the bytes of all layers as they are fetched, what one layer unpacks to, how many files and directories\n" +
			"that is, and the memory that unpacking it takes.",
		meaning: "layers of an image; one with more is refused, as with the limits that follow. The kernel mounts " +
			"no more than 500, whatever is set here",
	},
	{
		name:    "images.max_manifest_bytes",
		field:   of(func(c *Config) *int64 { return &c.Images.MaxManifestBytes }, between[int64]("bytes", 1, 1<<30), 4<<20),
		meaning: "bytes of a manifest or an index (4 MiB)",
	},
	{
		name:    "images.max_config_bytes",
		field:   of(func(c *Config) *int64 { return &c.Images.MaxConfigBytes }, between[int64]("bytes", 1, 1<<30), 1<<20),
		meaning: "bytes of an image's config (1 MiB)",
	},
	{
		name:    "images.max_image_bytes",
		field:   of(func(c *Config) *int64 { return &c.Images.MaxImageBytes }, between[int64]("bytes", 1, 1<<60), 512<<30),
		meaning: "bytes of all layers of an image, as they are fetched (512 GiB)",
	},
	{
		name:    "images.max_layer_bytes",
		field:   of(func(c *Config) *int64 { return &c.Images.MaxLayerBytes }, between[int64]("bytes", 1, 1<<60), 128<<30),
		meaning: "bytes that one layer may unpack to (128 GiB); each file and directory counts 4 KiB besides",
	},
	{
		name: "images.max_layer_entries",
		field: of(func(c *Config) *int {
			return &c.Images.MaxLayerEntries
		}, between("files and directories", 1, math.MaxInt32), 8<<20),
		meaning: "files and directories in one layer, those among them that no entry describes",
	},
	{
		name: "images.max_layer_memory_bytes",
		field: of(func(c *Config) *int64 { return &c.Images.MaxLayerMemoryBytes },
			between[int64]("bytes", 1<<10, 1<<40), 32<<20),
		meaning: "memory for what is kept of one layer while it is unpacked: some 90 bytes for a directory, more for a " +
			"hard link to a file of a lower layer (32 MiB)",
	},
	{
		name:    "images.min_free_percent",
		field:   of(func(c *Config) *int { return &c.Images.MinFreePercent }, between("percent", 0, 50), 3),
		comment: "What pulls and imports leave free of the file system of the images, in percent; 0 for nothing.",
		meaning: "what pulls and imports leave free of the file system of the images, in percent of its bytes and of " +
			"its inodes; 0 to 50. A kubelet collects images long before: keep this below its thresholds (10 and 15 % of " +
			"the bytes, 5 % of the inodes, unless it is told otherwise)",
	},
	{
		name: "images.unpack", restart: true,
		field: of(func(c *Config) *string { return &c.Images.Unpack },
			oneOf(UnpackInDaemon, UnpackInProcess), UnpackInProcess),
		comment: "Who unpacks layers: a confined process for each, or the daemon, which takes less processor time.",
		meaning: "who inflates and unpacks layers: a `process` of its own for each layer, confined and without privileges, " +
			"or the `daemon`; see [unpacking](unpacking.md). A process takes 5 to 19 % more processor time for large " +
			"layers and some 2 ms for a small one",
	},
	{
		name: "images.unpacker", restart: true, unset: "looked for",
		field:   of(func(c *Config) *string { return &c.Images.Unpacker }, optionalPath, ""),
		comment: "Empty: beside the berth program, then /usr/libexec/berth, then PATH.",
		meaning: "`berth-unpack`, which unpacks layers: beside `berth`, then in `/usr/libexec/berth`, then on `PATH`",
	},
	{
		name: "image_verifier.dir", unset: "none",
		field: of(func(c *Config) *string { return &c.Verifier.Dir }, optionalPath, ""),
		comment: "Every program in it is asked about an image before it is fetched, and all must accept. " +
			"Empty: none is asked.",
		meaning: "every program in it is asked about an image before it is fetched, and all must accept; see " +
			"[image verification](image-verification.md)",
	},
	{
		name:    "image_verifier.max",
		field:   of(func(c *Config) *int { return &c.Verifier.Max }, between("programs", 1, 1000), 10),
		comment: "With more programs than this in the directory every image is refused.",
		meaning: "programs that may be in it; with more every image is refused; 1 to 1000",
	},
	{
		name:    "image_verifier.timeout",
		field:   of(func(c *Config) *Duration { return &c.Verifier.Timeout }, duration, seconds(10)),
		comment: "Of one program; then it is killed with its children, and the image refused.",
		meaning: "for one program; then it is killed with its children, and the image refused",
	},
}, nriKeys, []key[Config]{
	{
		name: "runtimes.default", unset: "probed",
		field:   of(func(c *Config) *string { return &c.Runtimes.Default }, handlerName, ""),
		comment: "The handler of a pod that names none. Left out: crun where it works, else runc.",
		meaning: "the handler of a pod that names none; `crun` and `runc` need no table of their own; see " +
			"[runtimes](runtimes.md)",
	},
	{
		name: "streaming.address", restart: true,
		field: of(func(c *Config) *string { return &c.Streaming.Address }, address, "127.0.0.1"),
		comment: "Where exec, attach and port-forward are served, and kubelets told to come: an IP address or " +
			"a name of this node. Port 0: any.",
		meaning: "where exec, attach and port-forward are served, and what kubelets are told: an IP address or " +
			"a name of this node; see [streaming](streaming.md)",
	},
	{
		name: "streaming.port", restart: true,
		field:   of(func(c *Config) *int { return &c.Streaming.Port }, between("", 0, 65535), 0),
		meaning: "its port; 0 is any that is free",
	},
	{
		name: "streaming.cert", restart: true, unset: "none",
		field:   of(func(c *Config) *string { return &c.Streaming.Cert }, optionalPath, ""),
		comment: "A certificate and its key, in PEM, for TLS; read again when they change. Empty: no TLS.",
		meaning: "a certificate, in PEM, with which it is served over TLS; read again when it changes",
	},
	{
		name: "streaming.key", restart: true, unset: "none",
		field:   of(func(c *Config) *string { return &c.Streaming.Key }, optionalPath, ""),
		meaning: "the key of that certificate",
	},
	{
		name: "streaming.idle_timeout", restart: true,
		field:   of(func(c *Config) *Duration { return &c.Streaming.IdleTimeout }, duration, seconds(4*60*60)),
		comment: "A connection over which nothing goes for so long is ended.",
		meaning: "a connection over which nothing goes for so long is ended",
	},
	{
		name: "streaming.max_waiting", restart: true,
		field:   of(func(c *Config) *int { return &c.Streaming.MaxWaiting }, between("sessions", 1, 1_000_000), 1000),
		comment: "Sessions asked for within a minute and not begun.",
		meaning: "sessions of exec, attach and port-forward that clients asked for within a minute and have not begun; " +
			"more are refused",
	},
	{
		name: "streaming.max_sessions", restart: true,
		field:   of(func(c *Config) *int { return &c.Streaming.MaxSessions }, between("sessions", 1, 1_000_000), 5000),
		comment: "Sessions under way, and those not begun; then those of one container or pod.",
		meaning: "sessions of exec, attach and port-forward over HTTP that have not ended, those not begun among them; " +
			"more are refused",
	},
	{
		name: "streaming.max_target_sessions", restart: true,
		field:   of(func(c *Config) *int { return &c.Streaming.MaxTargetSessions }, between("sessions", 1, 1_000_000), 500),
		meaning: "such sessions of one container, or port-forwards of one pod; more are refused",
	},
	{
		name: "monitor.path", restart: true, unset: "looked for",
		field:   of(func(c *Config) *string { return &c.Monitor.Path }, optionalPath, ""),
		comment: "Empty: beside the berth program, then /usr/libexec/berth, then PATH.",
		meaning: "`berth-monitor`: beside `berth`, then in `/usr/libexec/berth`, then on `PATH`",
	},
	{
		name:  "pods.unprivileged_ports",
		field: of(func(c *Config) *bool { return &c.Pods.UnprivilegedPorts }, boolean, true),
		comment: "In a pod with a network of its own, processes without powers may listen on any port,\n" +
			"and may send ICMP echo requests, as ping does. The pod's own sysctls go before it.",
		meaning: "processes without powers may listen on any port of a pod that has a network of its own: " +
			"`net.ipv4.ip_unprivileged_port_start` is 0 there. The pod's own sysctls go before it",
	},
	{
		name:  "pods.unprivileged_icmp",
		field: of(func(c *Config) *bool { return &c.Pods.UnprivilegedICMP }, boolean, true),
		meaning: "the same for ICMP echo requests, as `ping` sends them: `net.ipv4.ping_group_range` is `0 " +
			"2147483647`",
	},
	{
		name:  "pods.list_run",
		field: of(func(c *Config) *bool { return &c.Pods.ListByHand }, boolean, false),
		comment: "Have the pods of berth run in the lists of all clients of CRI, such as crictl. A kubelet ends every\n" +
			"pod that it did not make: leave it where one runs.",
		meaning: "the pods of `berth run` are in the lists, statistics and events of all clients of CRI, and not only in " +
			"those " +
			"of `berth`. A kubelet ends every pod that it did not make ([why](adr/0060-a-kubelet-sees-its-own-pods.md))",
	},
	{
		name: "limits.pids",
		field: of(func(c *Config) *int {
			return &c.Limits.Pids
		}, processes(0, func(v int) string { return fmt.Sprintf("%d is negative; 0 is no limit", v) }), 0),
		comment: "Processes of a container that asks for no limit. 0: no limit.",
		meaning: "processes of a container that asks for no limit; 0 is no limit",
	},
	{
		name: "limits.memory", restart: true, unset: "1 GiB, or four times what the start took",
		field: of(func(c *Config) *int64 { return &c.Limits.Memory }, memoryLimit, 0),
		comment: "Bytes of memory of the daemon itself: at them it is ended, and starts again. 0: by itself. -1: no " +
			"limit.",
		meaning: "bytes of memory of the daemon itself, 128 MiB at least. On cgroup v2 in its own unit the kernel ends " +
			"it there, and it starts again; elsewhere it only collects garbage earlier. 0 is the greater of 1 GiB " +
			"and four times what its start took; -1 is none. See [the service](service.md#its-own-memory)",
	},
	{
		name: "limits.connections", restart: true,
		field: of(func(c *Config) *int { return &c.Limits.Connections }, between("connections", 16, 1<<20), 1024),
		meaning: "connections to `socket`. One process may have as many as are free besides, so half of them while it is " +
			"alone; and so it is for calls, execs and pulls",
	},
	{
		name: "limits.calls", restart: true,
		field:   of(func(c *Config) *int { return &c.Limits.Calls }, between("calls", 100, 1<<20), 16384),
		meaning: "calls under way; 100 to 1048576",
	},
	{
		name: "limits.execs", restart: true,
		field:   of(func(c *Config) *int { return &c.Limits.Execs }, between("calls", 100, 1<<20), 8192),
		meaning: "ExecSyncs under way, which are the probes that run a command; 100 to 1048576",
	},
	{
		name: "limits.pulls", restart: true,
		field:   of(func(c *Config) *int { return &c.Limits.Pulls }, between("calls", 10, 1<<20), 2048),
		meaning: "pulls and imports of images that clients wait for; 10 to 1048576",
	},
	{
		name: "limits.request_bytes",
		field: of(func(c *Config) *int64 { return &c.Limits.RequestBytes }, between[int64]("bytes", 1<<20, 16<<20),
			8<<20),
		meaning: "size of a request of CRI: of what a pod or container is asked to be; 1 to 16 MiB",
	},
	{
		name:  "limits.request_entries",
		field: of(func(c *Config) *int { return &c.Limits.RequestEntries }, between("entries", 1000, 1<<20), 65536),
		meaning: "entries of each list and map in a request of CRI, such as variables, mounts, devices, labels; 1000 to " +
			"1048576",
	},
	{
		name: "limits.label_bytes",
		field: of(func(c *Config) *int64 { return &c.Limits.LabelBytes }, between[int64]("bytes", 256<<10, 16<<20),
			512<<10),
		meaning: "size of the labels, the annotations or another map in a request of CRI; 256 KiB, which Kubernetes allows " +
			"for annotations, to 16 MiB. Each list of pods or containers repeats them",
	},
	{
		name:    "timeouts.runtime_create",
		field:   of(func(c *Config) *Duration { return &c.Timeouts.RuntimeCreate }, duration, seconds(120)),
		comment: "Of an OCI runtime's create and of its start.",
		meaning: "for an OCI runtime's create, and for its start",
	},
	{
		name: "timeouts.create_abandon", restart: true,
		field:   of(func(c *Config) *Duration { return &c.Timeouts.CreateAbandon }, duration, seconds(120)),
		comment: "A create that nobody has waited for in this long is undone.",
		meaning: "a create that no caller has waited for in this long is undone",
	},
	{
		name: "metrics.address", restart: true, unset: "none",
		field:   of(func(c *Config) *string { return &c.Metrics.Address }, hostPort, ""),
		comment: "Where Prometheus finds the daemon's own metrics, host:port, at /metrics. Empty: nowhere.",
		meaning: "`host:port` at which Prometheus finds the daemon's own metrics (`/metrics`); see [stats and " +
			"metrics](stats.md#the-daemons-own-metrics)",
	},
})

// memoryLimit is how much memory the daemon may have.
var memoryLimit = number[int64]("bytes").with("a number of bytes, 134217728 or more, 0 or -1", func(v int64) string {
	if v < -1 || v > 0 && v < 128<<20 {
		return fmt.Sprintf("%d is less than 134217728; 0 is by itself, and -1 is no limit", v)
	}
	return ""
})

// handlerName is the name of a handler. It is left out where it is empty.
var handlerName = kind[string]{name: "name of a handler", read: func(said any) (string, string) {
	name, ok := said.(string)
	if !ok {
		return "", "must be a string, the name of a handler"
	}
	return name, ""
}, text: func(v string) string {
	if v == "" {
		return ""
	}
	return quote(v)
}}

// address is where something is served, without a port.
var address = text.with("IP address or name", func(v string) string {
	switch {
	case v == "":
		return "is empty; 0.0.0.0 and :: are all addresses of the node"
	case net.ParseIP(v) == nil && strings.ContainsAny(v, ":/[] "):
		return fmt.Sprintf("%q is neither an IP address nor a name; the port is streaming.port", v)
	}
	return ""
})

// hostPort is where something is served, or empty.
var hostPort = text.with("host:port, or empty", func(v string) string {
	if v == "" {
		return ""
	}
	if _, port, err := net.SplitHostPort(v); err != nil || port == "" {
		return fmt.Sprintf("%q is not an address such as 127.0.0.1:9423", v)
	}
	return ""
})
