package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxSocket is how long the path of a unix socket may be: the kernel's 108 bytes, less the terminating one.
const maxSocket = 107

// maxRoot is how long the path of root may be: fsconfig(2) takes 255 bytes, and what a container writes is 143 below.
const maxRoot = 255 - len("/pods//c//upper") - 2*64

// handlerLabel is a DNS label: Kubernetes takes nothing else for the handler of a RuntimeClass.
var handlerLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// usual are the handlers that need no table: they are looked for in the usual places.
var usual = []string{"crun", "runc"}

// check refuses values that cannot work, each at the place that set it: what a key's row refuses, and then what depends
// on several keys.
func (l *loader) check() error {
	for _, k := range keys {
		if why := k.check(l.config); why != "" {
			return l.refuse(k.name, "%s", why)
		}
	}
	if len(l.config.CNI.PluginDirs) == 0 {
		return l.refuse("cni.plugin_dirs", "is empty: without plugins there is no network")
	}
	for _, part := range []func() error{l.places, l.crio, l.apart, l.imagesApart, l.streaming, l.handlers} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) refuse(key, format string, args ...any) error {
	return l.where.refuse("configuration", key, fmt.Sprintf(format, args...))
}

// places refuses paths below which no container can start: overlay takes a colon and a backslash for its own signs, OCI
// runtimes a colon, and Berth the others for patterns.
func (l *loader) places() error {
	c := l.config
	for _, of := range []struct{ key, path string }{
		{"root", c.Root}, {"state", c.State}, {"images.root", c.Images.Root},
	} {
		if i := strings.IndexAny(of.path, `:\*?[]`); i >= 0 {
			return l.refuse(of.key, "%q has the character %q, below which no container can start", of.path, of.path[i])
		}
	}
	if i := strings.IndexAny(c.Socket, "%?#"); i >= 0 {
		return l.refuse("socket", "%q has the character %q, which clients take for another", c.Socket, c.Socket[i])
	}
	if len(c.Root) > maxRoot {
		return l.refuse("root", "is %d bytes long; the kernel mounts the roots of containers below a path of %d", len(c.Root),
			maxRoot)
	}
	return nil
}

func (l *loader) crio() error {
	c := l.config
	switch {
	case c.CRIOSocket == "":
		return nil
	case c.CgroupNames != NamesCRIO:
		return l.refuse("crio_socket", "cAdvisor asks there about containers whose cgroups are called as CRI-O's: it takes "+
			"cgroup_names = %q", NamesCRIO)
	case len(c.CRIOSocket) > maxSocket:
		return l.refuse("crio_socket", "is %d bytes long; the kernel allows a socket %d", len(c.CRIOSocket), maxSocket)
	case c.CRIOSocket == c.Socket:
		return l.refuse("crio_socket", "%q is the socket of CRI already", c.CRIOSocket)
	}
	return nil
}

// apart keeps what dies with a boot away from what does not, and the socket within the kernel's limit. The pods' own
// sockets are reached through their open directories, however long the path of state is.
func (l *loader) apart() error {
	c := l.config
	switch {
	case within(c.State, c.Root):
		return l.refuse(l.last("state", "root"), "state %q and root %q must be apart: neither may hold the other", c.State,
			c.Root)
	case within(c.Root, c.State):
		return l.refuse(l.last("root", "state"), "root %q and state %q must be apart: neither may hold the other", c.Root,
			c.State)
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
		return l.refuse("images.root", "%q and root %q must be apart, but that images.root may be %q", images, c.Root,
			filepath.Join(c.Root, "images"))
	case c.Socket == images:
		return l.refuse("socket", "%q is a directory", c.Socket)
	}
	for _, other := range []string{images, c.State} {
		if dir := c.Images.PreloadDir; dir != "" && (within(dir, other) || within(other, dir)) {
			return l.refuse("images.preload_dir", "%q and %q must be apart: neither may hold the other", dir, other)
		}
	}
	return nil
}

// last is the key of the two that was set, so that a default is not blamed.
func (l *loader) last(a, b string) string {
	if _, set := l.where[a]; set {
		return a
	}
	return b
}

// within reports whether path is dir or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// streaming wants both halves of TLS.
func (l *loader) streaming() error {
	if s := l.config.Streaming; (s.Cert == "") != (s.Key == "") {
		return l.refuse(l.last("streaming.cert", "streaming.key"), "TLS needs both, streaming.cert and streaming.key")
	}
	return nil
}

func (l *loader) handlers() error {
	r := l.config.Runtimes
	for _, name := range r.names() {
		key := "runtimes." + name
		if !handlerLabel.MatchString(name) {
			return l.refuse(key, "%q cannot name a handler: up to 63 of a-z, 0-9 and, between them, - can, as in a RuntimeClass",
				name)
		}
		if r.Handlers[name].Path == "" {
			return l.refuse(key, "needs a path")
		}
		h := r.Handlers[name]
		for _, k := range handlerKeys {
			if why := k.check(&h); why != "" {
				return l.refuse(key+"."+k.name, "%s", why)
			}
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
