package config

import (
	"cmp"
	"maps"
	"slices"
)

// wire is the file as it is written: the names of its keys are the tags here. It starts as what is known already, so that
// a key that a file does not mention keeps its value.
type wire struct {
	Root         string         `toml:"root"`
	State        string         `toml:"state"`
	Socket       string         `toml:"socket"`
	LogLevel     string         `toml:"log_level"`
	LogFormat    string         `toml:"log_format"`
	CgroupDriver string         `toml:"cgroup_driver"`
	SELinux      string         `toml:"selinux"`
	CNI          wireCNI        `toml:"cni"`
	CDI          wireCDI        `toml:"cdi"`
	Registry     wireRegistry   `toml:"registry"`
	Images       wireImages     `toml:"images"`
	Verifier     wireVerifier   `toml:"image_verifier"`
	NRI          wireNRI        `toml:"nri"`
	Runtimes     map[string]any `toml:"runtimes"` // default, and tables of handlers
	Streaming    wireStreaming  `toml:"streaming"`
	Monitor      wireMonitor    `toml:"monitor"`
	Pods         wirePods       `toml:"pods"`
	Limits       wireLimits     `toml:"limits"`
	Timeouts     wireTimeouts   `toml:"timeouts"`
	Metrics      wireMetrics    `toml:"metrics"`
}

type wireCNI struct {
	ConfigDir       string   `toml:"config_dir"`
	PluginDirs      []string `toml:"plugin_dirs"`
	PodCIDRTemplate string   `toml:"pod_cidr_template"`
	AddTimeout      Duration `toml:"add_timeout"`
	DelTimeout      Duration `toml:"del_timeout"`
}

type wireCDI struct {
	SpecDirs []string `toml:"spec_dirs"`
}

type wireRegistry struct {
	ConfigDir string `toml:"config_dir"`
}

type wireImages struct {
	Root                   string   `toml:"root"`
	MaxConcurrentDownloads int      `toml:"max_concurrent_downloads"`
	MaxPullLayers          int      `toml:"max_pull_layers"`
	MaxLayerConnections    int      `toml:"max_layer_connections"`
	StallTimeout           Duration `toml:"stall_timeout"`
	MaxBufferBytes         int64    `toml:"max_buffer_bytes"`
	Pinned                 []string `toml:"pinned"`
	MaxLayers              int      `toml:"max_layers"`
	MaxManifestBytes       int64    `toml:"max_manifest_bytes"`
	MaxConfigBytes         int64    `toml:"max_config_bytes"`
	MaxLayerBytes          int64    `toml:"max_layer_bytes"`
	MaxLayerEntries        int      `toml:"max_layer_entries"`
}

type wireVerifier struct {
	Dir     string   `toml:"dir"`
	Max     int      `toml:"max"`
	Timeout Duration `toml:"timeout"`
}

type wireNRI struct {
	Enable                 *bool    `toml:"enable"`
	Socket                 string   `toml:"socket"`
	PluginDir              string   `toml:"plugin_dir"`
	ConfigDir              string   `toml:"config_dir"`
	RegistrationTimeout    Duration `toml:"registration_timeout"`
	RequestTimeout         Duration `toml:"request_timeout"`
	SynchronizationTimeout Duration `toml:"synchronization_timeout"`
}

type wireHandler struct {
	Path                               string   `toml:"path"`
	Driver                             string   `toml:"driver"`
	Args                               []string `toml:"args"`
	Init                               bool     `toml:"init"`
	BaseSpec                           string   `toml:"base_spec"`
	PidsLimit                          int      `toml:"pids_limit"`
	CreateTimeout                      Duration `toml:"create_timeout"`
	PrivilegedWithoutHostDevices       bool     `toml:"privileged_without_host_devices"`
	CgroupWritable                     bool     `toml:"cgroup_writable"`
	DeviceOwnershipFromSecurityContext bool     `toml:"device_ownership_from_security_context"`
	PodAnnotations                     []string `toml:"pod_annotations"`
	ContainerAnnotations               []string `toml:"container_annotations"`
}

type wireStreaming struct {
	Address     string   `toml:"address"`
	Port        int      `toml:"port"`
	Cert        string   `toml:"cert"`
	Key         string   `toml:"key"`
	IdleTimeout Duration `toml:"idle_timeout"`
}

type wireMonitor struct {
	Path string `toml:"path"`
}

type wirePods struct {
	UnprivilegedPorts bool `toml:"unprivileged_ports"`
	UnprivilegedICMP  bool `toml:"unprivileged_icmp"`
}

type wireLimits struct {
	Pids int `toml:"pids"`
}

type wireMetrics struct {
	Address string `toml:"address"`
}

type wireTimeouts struct {
	RuntimeCreate Duration `toml:"runtime_create"`
	CreateAbandon Duration `toml:"create_abandon"`
}

// newWire copies what is behind a pointer, lists too: a decoder writes into what it finds.
func newWire(c *Config) *wire {
	w := &wire{
		Root: c.Root, State: c.State, Socket: c.Socket, LogLevel: c.LogLevel, LogFormat: c.LogFormat, CgroupDriver: c.CgroupDriver, SELinux: c.SELinux,
		CNI: wireCNI(c.CNI), CDI: wireCDI(c.CDI), Registry: wireRegistry(c.Registry), Images: wireImages(c.Images), Verifier: wireVerifier(c.Verifier),
		NRI:       wireNRI(c.NRI),
		Streaming: wireStreaming(c.Streaming), Monitor: wireMonitor(c.Monitor), Pods: wirePods(c.Pods), Limits: wireLimits(c.Limits), Timeouts: wireTimeouts(c.Timeouts), Metrics: wireMetrics(c.Metrics),
	}
	w.CNI.PluginDirs = slices.Clone(c.CNI.PluginDirs)
	w.CDI.SpecDirs = slices.Clone(c.CDI.SpecDirs)
	w.Images.Pinned = slices.Clone(c.Images.Pinned)
	if on := c.NRI.Enable; on != nil {
		enable := *on
		w.NRI.Enable = &enable
	}
	return w
}

// into sets everything but the runtimes, which loader.runtimes takes apart.
func (w *wire) into(c *Config) {
	c.Root, c.State, c.Socket, c.LogLevel, c.LogFormat = w.Root, w.State, w.Socket, w.LogLevel, w.LogFormat
	c.CgroupDriver, c.SELinux = w.CgroupDriver, w.SELinux
	c.CDI, c.NRI = CDI(w.CDI), NRI(w.NRI)
	c.CNI, c.Registry, c.Images, c.Verifier = CNI(w.CNI), Registry(w.Registry), Images(w.Images), Verifier(w.Verifier)
	c.Streaming, c.Monitor, c.Timeouts = Streaming(w.Streaming), Monitor(w.Monitor), Timeouts(w.Timeouts)
	c.Pods, c.Limits = Pods(w.Pods), Limits(w.Limits)
	c.Metrics = Metrics(w.Metrics)
}

func wireHandlerOf(h Handler) wireHandler {
	w := wireHandler(h)
	w.Args, w.PodAnnotations, w.ContainerAnnotations = slices.Clone(h.Args), slices.Clone(h.PodAnnotations), slices.Clone(h.ContainerAnnotations)
	return w
}

// handler is the other way. No list and an empty one are the same here, and so are no driver and the usual one.
func (w wireHandler) handler() Handler {
	h := Handler(w)
	h.Driver = cmp.Or(h.Driver, DriverOCI)
	for _, l := range []*[]string{&h.Args, &h.PodAnnotations, &h.ContainerAnnotations} {
		if len(*l) == 0 {
			*l = nil
		}
	}
	return h
}

// names are the configured handlers in order.
func (r Runtimes) names() []string { return slices.Sorted(maps.Keys(r.Handlers)) }
