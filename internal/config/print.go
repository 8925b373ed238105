package config

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// TOML is the configuration as a file that says what each key is for. Loaded, it gives the same configuration again.
func (c *Config) TOML() string {
	var p printer
	p.comment("What outlives a boot: images, pods' records, containers' writable layers.")
	p.set("root", quote(c.Root))
	p.comment("What dies with a boot: sockets, mounts, namespace pins.")
	p.set("state", quote(c.State))
	p.comment("Where kubelets and `berth` commands speak to the daemon.")
	p.set("socket", quote(c.Socket))
	p.comment("debug, info, warn or error.")
	p.set("log_level", quote(c.LogLevel))
	p.comment("text or json.")
	p.set("log_format", quote(c.LogFormat))
	p.comment("Who makes the cgroups: cgroupfs or systemd. Empty: systemd where it is the init, on cgroup v2. Kubelets ask for it.")
	p.set("cgroup_driver", quote(c.CgroupDriver))
	p.comment("Whether containers get SELinux labels: on or off. Empty: on where the kernel has it and its policy knows containers.")
	p.set("selinux", quote(c.SELinux))
	p.cni(c.CNI)
	p.table("cdi")
	p.comment("Hold the files that describe devices (CDI); of two that describe the same one, the later directory's counts.")
	p.set("spec_dirs", list(c.CDI.SpecDirs))
	p.table("registry")
	p.comment("Holds <host>/hosts.toml: mirrors, certificates, headers.")
	p.set("config_dir", quote(c.Registry.ConfigDir))
	p.images(c.Images)
	p.verifier(c.Verifier)
	p.streaming(c.Streaming)
	p.nri(c.NRI)
	p.table("monitor")
	p.comment("Empty: beside the berth program, then /usr/libexec/berth, then PATH.")
	p.set("path", quote(c.Monitor.Path))
	p.table("pods")
	p.comment("In a pod with a network of its own, processes without powers may listen on any port,")
	p.comment("and may send ICMP echo requests, as ping does. The pod's own sysctls go before it.")
	p.set("unprivileged_ports", strconv.FormatBool(c.Pods.UnprivilegedPorts))
	p.set("unprivileged_icmp", strconv.FormatBool(c.Pods.UnprivilegedICMP))
	p.table("limits")
	p.comment("Processes of a container that asks for no limit. 0: no limit.")
	p.set("pids", strconv.Itoa(c.Limits.Pids))
	p.table("timeouts")
	p.comment("Of an OCI runtime's create and of its start.")
	p.set("runtime_create", quote(c.Timeouts.RuntimeCreate.String()))
	p.comment("A create that nobody has waited for in this long is undone.")
	p.set("create_abandon", quote(c.Timeouts.CreateAbandon.String()))
	p.table("metrics")
	p.comment("Where Prometheus finds the daemon's own metrics, host:port, at /metrics. Empty: nowhere.")
	p.set("address", quote(c.Metrics.Address))
	p.runtimes(c.Runtimes)
	return p.String()
}

type printer struct{ strings.Builder }

func (p *printer) comment(text string)   { fmt.Fprintf(p, "# %s\n", text) }
func (p *printer) set(key, value string) { fmt.Fprintf(p, "%s = %s\n", key, value) }
func (p *printer) table(name string)     { fmt.Fprintf(p, "\n[%s]\n", name) }

func (p *printer) cni(c CNI) {
	p.table("cni")
	p.comment("The first configuration by name is the pods' network.")
	p.set("config_dir", quote(c.ConfigDir))
	p.comment("Searched for plugins, in this order.")
	p.set("plugin_dirs", list(c.PluginDirs))
	p.comment("A template of a CNI configuration, written to config_dir when the kubelet tells the node's pod CIDR. Empty: none.")
	p.set("pod_cidr_template", quote(c.PodCIDRTemplate))
	p.comment("Of all plugins of a pod together; then they are killed with their children.")
	p.set("add_timeout", quote(c.AddTimeout.String()))
	p.set("del_timeout", quote(c.DelTimeout.String()))
}

func (p *printer) images(c Images) {
	p.table("images")
	p.comment("Holds the images; may be on a file system of its own. Empty: images in the root.")
	p.set("root", quote(c.Root))
	p.comment("Layers fetched at once, over all pulls, and for one.")
	p.set("max_concurrent_downloads", strconv.Itoa(c.MaxConcurrentDownloads))
	p.set("max_pull_layers", strconv.Itoa(c.MaxPullLayers))
	p.comment("Connections of one large layer to its registry, where the network is what it waits for.")
	p.set("max_layer_connections", strconv.Itoa(c.MaxLayerConnections))
	p.comment("A registry that sends next to nothing for so long is given up, and its next mirror tried.")
	p.set("stall_timeout", quote(c.StallTimeout.String()))
	p.comment("Memory for what those connections fetch ahead, over all pulls.")
	p.set("max_buffer_bytes", strconv.FormatInt(c.MaxBufferBytes, 10))
	p.comment("References that garbage collection leaves alone; * stands for anything.")
	p.set("pinned", list(c.Pinned))
	p.comment("An image that is larger is refused: its layers, a manifest or an index, its config,")
	p.comment("what one layer unpacks to, and how many files and directories that is.")
	p.set("max_layers", strconv.Itoa(c.MaxLayers))
	p.set("max_manifest_bytes", strconv.FormatInt(c.MaxManifestBytes, 10))
	p.set("max_config_bytes", strconv.FormatInt(c.MaxConfigBytes, 10))
	p.set("max_layer_bytes", strconv.FormatInt(c.MaxLayerBytes, 10))
	p.set("max_layer_entries", strconv.Itoa(c.MaxLayerEntries))
}

func (p *printer) verifier(v Verifier) {
	p.table("image_verifier")
	p.comment("Every program in it is asked about an image before it is fetched, and all must accept. Empty: none is asked.")
	p.set("dir", quote(v.Dir))
	p.comment("With more programs than this in the directory every image is refused.")
	p.set("max", strconv.Itoa(v.Max))
	p.comment("Of one program; then it is killed with its children, and the image refused.")
	p.set("timeout", quote(v.Timeout.String()))
}

func (p *printer) streaming(s Streaming) {
	p.table("streaming")
	p.comment("Where exec, attach and port-forward are served, and kubelets told to come: an IP address or a name of this node. Port 0: any.")
	p.set("address", quote(s.Address))
	p.set("port", strconv.Itoa(s.Port))
	p.comment("A certificate and its key, in PEM, for TLS; read again when they change. Empty: no TLS.")
	p.set("cert", quote(s.Cert))
	p.set("key", quote(s.Key))
	p.comment("A connection over which nothing goes for so long is ended.")
	p.set("idle_timeout", quote(s.IdleTimeout.String()))
}

func (p *printer) nri(n NRI) {
	p.table("nri")
	p.comment("Lets plugins of the Node Resource Interface see and change pods and containers.")
	p.comment("Left out: where root is the default, so for one daemon of a node.")
	if n.Enable != nil {
		p.set("enable", strconv.FormatBool(*n.Enable))
	}
	p.comment("Where plugins connect. Empty: only those in plugin_dir take part. One that is in use is left alone.")
	p.set("socket", quote(n.Socket))
	p.comment("Programs named <index>-<name>, which are started with the daemon.")
	p.set("plugin_dir", quote(n.PluginDir))
	p.comment("Their configuration: <index>-<name>.conf or <name>.conf.")
	p.set("config_dir", quote(n.ConfigDir))
	p.comment("Of a plugin's registration, and of its answer to one request; then it is dropped.")
	p.set("registration_timeout", quote(n.RegistrationTimeout.String()))
	p.set("request_timeout", quote(n.RequestTimeout.String()))
	p.comment("Of a plugin's answer when it joins and is shown what there is. No container is made meanwhile.")
	p.set("synchronization_timeout", quote(n.SynchronizationTimeout.String()))
}

func (p *printer) runtimes(r Runtimes) {
	p.table("runtimes")
	p.comment("The handler of a pod that names none. Left out: crun where it works, else runc.")
	if r.Default != "" {
		p.set("default", quote(r.Default))
	}
	for _, name := range r.names() {
		h := r.Handlers[name]
		p.table("runtimes." + quote(name))
		p.comment("The program of this OCI runtime.")
		p.set("path", quote(h.Path))
		p.comment("oci: a pod is its namespaces. oci-infra: a container of this runtime stands for the pod, as gVisor wants it.")
		p.set("driver", quote(cmp.Or(h.Driver, DriverOCI)))
		p.comment("Arguments of every call of the program, before the command.")
		p.set("args", list(h.Args))
		p.comment("Every pod gets an init, for agents that need the pid of a pod.")
		p.set("init", strconv.FormatBool(h.Init))
		p.comment("A file with an OCI spec that is put under that of every container. Empty: none.")
		p.set("base_spec", quote(h.BaseSpec))
		p.comment("Processes of a container that asks for no limit. 0: as limits.pids says. -1: no limit.")
		p.set("pids_limit", strconv.Itoa(h.PidsLimit))
		p.comment("Of this runtime's create and of its start. 0s: as timeouts.runtime_create says.")
		p.set("create_timeout", quote(h.CreateTimeout.String()))
		p.comment("A privileged container gets the usual devices only, not the host's.")
		p.set("privileged_without_host_devices", strconv.FormatBool(h.PrivilegedWithoutHostDevices))
		p.comment("An unprivileged container gets /sys/fs/cgroup writable. Needs cgroup v2, mounted with nsdelegate.")
		p.set("cgroup_writable", strconv.FormatBool(h.CgroupWritable))
		p.comment("Devices of a request belong to the user and group of the container's security context.")
		p.set("device_ownership_from_security_context", strconv.FormatBool(h.DeviceOwnershipFromSecurityContext))
		p.comment("Patterns of annotations that this runtime gets to see.")
		p.set("pod_annotations", list(h.PodAnnotations))
		p.set("container_annotations", list(h.ContainerAnnotations))
	}
}

func list(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = quote(v)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quote writes a basic TOML string, whose escapes are not quite Go's.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
