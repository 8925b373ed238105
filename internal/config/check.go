package config

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxSocket is how long the path of a unix socket may be: the kernel's 108 bytes, less the terminating one.
const maxSocket = 107

// handlerName is a DNS label: Kubernetes takes nothing else for the handler of a RuntimeClass.
var handlerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// usual are the handlers that need no table: they are looked for in the usual places.
var usual = []string{"crun", "runc"}

// check refuses values that cannot work, each at the place that set it.
func (l *loader) check() error {
	for _, part := range []func() error{l.paths, l.apart, l.imagesApart, l.words, l.addresses, l.numbers, l.streaming, l.handlers} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) refuse(key, format string, args ...any) error {
	return l.where.refuse("configuration", key, fmt.Sprintf(format, args...))
}

// paths wants them absolute and clean: names on the host derive from them.
func (l *loader) paths() error {
	c := l.config
	for _, p := range []struct {
		key, value string
		optional   bool
	}{
		{"root", c.Root, false}, {"state", c.State, false}, {"socket", c.Socket, false},
		{"cni.config_dir", c.CNI.ConfigDir, false}, {"cni.pod_cidr_template", c.CNI.PodCIDRTemplate, true},
		{"registry.config_dir", c.Registry.ConfigDir, true}, {"monitor.path", c.Monitor.Path, true},
		{"nri.socket", c.NRI.Socket, true}, {"nri.plugin_dir", c.NRI.PluginDir, false}, {"nri.config_dir", c.NRI.ConfigDir, false},
		{"images.root", c.Images.Root, true}, {"image_verifier.dir", c.Verifier.Dir, true},
		{"streaming.cert", c.Streaming.Cert, true}, {"streaming.key", c.Streaming.Key, true},
	} {
		if err := l.path(p.key, p.value, p.optional); err != nil {
			return err
		}
	}
	if len(c.CNI.PluginDirs) == 0 {
		return l.refuse("cni.plugin_dirs", "is empty: without plugins there is no network")
	}
	for _, dir := range c.CDI.SpecDirs {
		if err := l.path("cdi.spec_dirs", dir, false); err != nil {
			return err
		}
	}
	for _, dir := range c.CNI.PluginDirs {
		if err := l.path("cni.plugin_dirs", dir, false); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) path(key, value string, optional bool) error {
	switch {
	case value == "" && optional:
		return nil
	case value == "":
		return l.refuse(key, "is empty")
	case !filepath.IsAbs(value):
		return l.refuse(key, "%q is not an absolute path", value)
	case filepath.Clean(value) != value:
		return l.refuse(key, "write %q as %q", value, filepath.Clean(value))
	case value == "/":
		return l.refuse(key, "cannot be the root directory of the machine")
	case strings.ContainsAny(value, "\x00\n"):
		return l.refuse(key, "%q has a character that no path here may have", value)
	}
	return nil
}

// apart keeps what dies with a boot away from what does not, and the socket within the kernel's limit. The pods' own sockets
// are reached through their open directories, however long the path of state is.
func (l *loader) apart() error {
	c := l.config
	switch {
	case within(c.State, c.Root):
		return l.refuse(l.last("state", "root"), "state %q and root %q must be apart: neither may hold the other", c.State, c.Root)
	case within(c.Root, c.State):
		return l.refuse(l.last("root", "state"), "root %q and state %q must be apart: neither may hold the other", c.Root, c.State)
	case len(c.Socket) > maxSocket:
		return l.refuse("socket", "is %d bytes long; the kernel allows a socket %d", len(c.Socket), maxSocket)
	case c.Socket == c.State || c.Socket == c.Root:
		return l.refuse("socket", "%q is a directory", c.Socket)
	}
	return nil
}

// imagesApart keeps the image store out of what else is there. Below root only its own usual place is free.
func (l *loader) imagesApart() error {
	c := l.config
	images := c.ImagesRoot()
	switch {
	case within(images, c.State), within(c.State, images):
		return l.refuse("images.root", "%q and state %q must be apart: neither may hold the other", images, c.State)
	case within(c.Root, images), within(images, c.Root) && images != filepath.Join(c.Root, "images"):
		return l.refuse("images.root", "%q and root %q must be apart, but that images.root may be %q", images, c.Root, filepath.Join(c.Root, "images"))
	case c.Socket == images:
		return l.refuse("socket", "%q is a directory", c.Socket)
	}
	return nil
}

// last is the key of the two that somebody set, so that a default is not blamed.
func (l *loader) last(a, b string) string {
	if _, set := l.where[a]; set {
		return a
	}
	return b
}

// within says whether path is dir or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func (l *loader) words() error {
	for _, w := range []struct {
		key, value string
		allowed    []string
	}{
		{"log_level", l.config.LogLevel, []string{"debug", "info", "warn", "error"}},
		{"log_format", l.config.LogFormat, []string{"text", "json"}},
		{"cgroup_driver", cmp.Or(l.config.CgroupDriver, "systemd"), []string{"cgroupfs", "systemd"}},
		{"selinux", cmp.Or(l.config.SELinux, SELinuxOn), []string{SELinuxOn, SELinuxOff}},
	} {
		if !slices.Contains(w.allowed, w.value) {
			return l.refuse(w.key, "%q is none of %s", w.value, strings.Join(w.allowed, ", "))
		}
	}
	if slices.Contains(l.config.Images.Pinned, "") {
		return l.refuse("images.pinned", "holds an empty reference")
	}
	return nil
}

// addresses wants a port of whoever shall listen.
func (l *loader) addresses() error {
	a := l.config.Metrics.Address
	if a == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(a); err != nil || port == "" {
		return l.refuse("metrics.address", "%q is not an address such as 127.0.0.1:9423", a)
	}
	return nil
}

// duration is a key that holds one.
type duration struct {
	key   string
	value Duration
}

func (c *Config) durations() []duration {
	return []duration{
		{"cni.add_timeout", c.CNI.AddTimeout}, {"cni.del_timeout", c.CNI.DelTimeout},
		{"images.stall_timeout", c.Images.StallTimeout}, {"image_verifier.timeout", c.Verifier.Timeout},
		{"streaming.idle_timeout", c.Streaming.IdleTimeout},
		{"nri.registration_timeout", c.NRI.RegistrationTimeout}, {"nri.request_timeout", c.NRI.RequestTimeout},
		{"nri.synchronization_timeout", c.NRI.SynchronizationTimeout},
		{"timeouts.runtime_create", c.Timeouts.RuntimeCreate}, {"timeouts.create_abandon", c.Timeouts.CreateAbandon},
	}
}

func (l *loader) numbers() error {
	c := l.config
	for _, d := range c.durations() {
		if d.value.Duration <= 0 {
			return l.refuse(d.key, "%v is not more than nothing", d.value)
		}
	}
	for _, n := range []struct {
		key       string
		value, to int64
	}{
		{"images.max_concurrent_downloads", int64(c.Images.MaxConcurrentDownloads), 1000},
		{"images.max_pull_layers", int64(c.Images.MaxPullLayers), 1000},
		{"images.max_layer_connections", int64(c.Images.MaxLayerConnections), 64},
		{"images.max_buffer_bytes", c.Images.MaxBufferBytes, 1 << 40},
		{"image_verifier.max", int64(c.Verifier.Max), 1000},
		{"images.max_layers", int64(c.Images.MaxLayers), 100_000},
		{"images.max_manifest_bytes", c.Images.MaxManifestBytes, 1 << 30},
		{"images.max_config_bytes", c.Images.MaxConfigBytes, 1 << 30},
		{"images.max_layer_bytes", c.Images.MaxLayerBytes, 1 << 60},
		{"images.max_layer_entries", int64(c.Images.MaxLayerEntries), math.MaxInt32},
	} {
		if n.value < 1 || n.value > n.to {
			return l.refuse(n.key, "%d is not between 1 and %d", n.value, n.to)
		}
	}
	if c.Limits.Pids < 0 {
		return l.refuse("limits.pids", "%d is negative; 0 is no limit", c.Limits.Pids)
	}
	return nil
}

func (l *loader) streaming() error {
	s := l.config.Streaming
	switch {
	case s.Address == "":
		return l.refuse("streaming.address", "is empty; 0.0.0.0 and :: are all addresses of the node")
	case net.ParseIP(s.Address) == nil && strings.ContainsAny(s.Address, ":/[] "):
		return l.refuse("streaming.address", "%q is neither an IP address nor a name; the port is streaming.port", s.Address)
	case s.Port < 0 || s.Port > 65535:
		return l.refuse("streaming.port", "%d is not between 0 and 65535", s.Port)
	case (s.Cert == "") != (s.Key == ""):
		return l.refuse(l.last("streaming.cert", "streaming.key"), "TLS needs both, streaming.cert and streaming.key")
	}
	return nil
}

func (l *loader) handlers() error {
	r := l.config.Runtimes
	for _, name := range r.names() {
		key := "runtimes." + name
		if !handlerName.MatchString(name) {
			return l.refuse(key, "%q cannot name a handler: up to 63 of a-z, 0-9 and, between them, - can, as in a RuntimeClass", name)
		}
		if r.Handlers[name].Path == "" {
			return l.refuse(key, "needs a path")
		}
		if err := l.handler(key, r.Handlers[name]); err != nil {
			return err
		}
	}
	if r.Default == "" {
		if _, set := l.where["runtimes.default"]; set {
			return l.refuse("runtimes.default", "is empty; leave it out to have the default probed")
		}
		return nil
	}
	if _, ok := r.Handlers[r.Default]; !ok && !slices.Contains(usual, r.Default) {
		return l.refuse("runtimes.default", "there is no handler %q: add [runtimes.%s] with its path", r.Default, r.Default)
	}
	return nil
}

// ours are the arguments of an OCI runtime that the daemon gives itself.
var ours = []string{"root", "log", "log-format", "systemd-cgroup"}

func (l *loader) handler(key string, h Handler) error {
	if err := l.path(key+".path", h.Path, false); err != nil {
		return err
	}
	if err := l.path(key+".base_spec", h.BaseSpec, true); err != nil {
		return err
	}
	for _, a := range h.Args {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-") || name == "":
			return l.refuse(key+".args", "%q is no option: write one with its value as %q", a, "--option=value")
		case slices.Contains(ours, name):
			return l.refuse(key+".args", "%q is the daemon's to say", a)
		}
	}
	switch {
	case !slices.Contains([]string{"", DriverOCI, DriverInfra}, h.Driver):
		return l.refuse(key+".driver", "%q is none of %s, %s", h.Driver, DriverOCI, DriverInfra)
	case h.PidsLimit < -1:
		return l.refuse(key+".pids_limit", "%d is less than -1, which is no limit", h.PidsLimit)
	case h.CreateTimeout.Duration < 0:
		return l.refuse(key+".create_timeout", "%v is less than nothing", h.CreateTimeout)
	}
	return nil
}
