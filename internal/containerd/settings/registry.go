package settings

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// registries are what is said of registries in the configuration itself, by containerd and by k3s.
type registries struct {
	c       *conversion
	mirrors map[string][]string // addresses by the host that they stand for
	hosts   map[string]*hostTable
	dirs    setting // config_path
	from    string  // the file that says it
}

// hostTable is what is said of one host.
type hostTable struct {
	ca, cert, key  string
	skip           bool
	user, password string
	auth           string // both, as Docker has them
	token          string
}

func (r *registries) host(name string) *hostTable {
	name = hostOf(name)
	if r.hosts[name] == nil {
		r.hosts[name] = &hostTable{}
	}
	return r.hosts[name]
}

// hostOf is the host of a name that may be an address.
func hostOf(name string) string {
	if u, err := url.Parse(name); err == nil && u.Host != "" {
		return u.Host
	}
	return name
}

// take takes a setting of the registry table of CRI.
func (r *registries) take(s setting) {
	if s.isZero() {
		return
	}
	if len(s.parts) < 3 {
		r.c.drop(s, "it is no table")
		return
	}
	r.from = s.file
	switch parts := s.parts[2:]; {
	case parts[0] == "config_path":
		r.dirs = s
	case s.matches("cri.registry.mirrors.*.endpoint"):
		r.mirror(s, parts[1])
	case s.matches("cri.registry.configs.*.*.*"), s.matches("cri.registry.auths.*.*"):
		r.hostSetting(s, parts[1], parts[len(parts)-1])
	case parts[0] == "headers":
		r.c.drop(s, "say it for each host, in its hosts.toml")
	default:
		r.c.drop(s, "Berth knows no such setting")
	}
}

// mirror takes the addresses of the mirrors of a registry.
func (r *registries) mirror(s setting, host string) {
	if !validHost(host) {
		r.c.drop(s, "it is the name of no registry")
		return
	}
	r.mirrors[host] = s.strings()
	r.c.carry(s, fileOf(host), "")
}

// fileOf is where what is said of a host goes.
func fileOf(host string) string { return CertsD + "/" + directory(host) + "/hosts.toml" }

// directory is that of a host in certs.d.
func directory(host string) string {
	if host == "*" {
		return "_default"
	}
	return host
}

// tlsKeys are what goes into a hosts.toml, whose directory has the name of the host.
var tlsKeys = []string{"ca_file", "cert_file", "key_file", "insecure_skip_verify"}

// hostSetting takes what TLS or credentials a host wants.
func (r *registries) hostSetting(s setting, host, key string) {
	if slices.Contains(tlsKeys, key) && !validHost(hostOf(host)) {
		r.c.drop(s, "it is of the name of no registry")
		return
	}
	h := r.host(host)
	to := map[string]*string{
		"ca_file": &h.ca, "cert_file": &h.cert, "key_file": &h.key, "username": &h.user, "password": &h.password,
		"auth": &h.auth, "identitytoken": &h.token, "identity_token": &h.token,
	}[key]
	became := "hosts.toml of each registry that it serves"
	switch {
	case key == "insecure_skip_verify":
		h.skip, _ = s.value.(bool)
	case to == nil:
		r.c.drop(s, "Berth knows no such setting")
		return
	default:
		*to = s.string()
		if slices.Contains(secret, s.parts[len(s.parts)-2]) || slices.Contains(secret, s.parts[2]) {
			became = "credentials for the kubelet"
		}
	}
	why := ""
	if slices.Contains(tlsKeys, key) {
		why = r.c.stays(s.string())
	}
	r.c.carry(s, became, why)
}

// files are the hosts.toml that say the same, but for those that containerd has already.
func (r *registries) files(there []File) []File {
	names := slices.Collect(maps.Keys(r.mirrors))
	for name, h := range r.hosts {
		if h.ca != "" || h.cert != "" || h.skip {
			names = append(names, registryOf(name))
		}
	}
	slices.Sort(names)
	var out []File
	for _, name := range slices.Compact(names) {
		file := File{Name: directory(name) + "/hosts.toml", Mode: 0o644}
		if !validHost(name) { // one that has TLS
			continue
		}
		if slices.ContainsFunc(there, func(f File) bool { return f.Name == file.Name }) {
			r.c.note(r.from, name, "its directory has a hosts.toml, which counts")
			continue
		}
		text, private := r.hostsTOML(name)
		if private {
			file.Mode = 0o600
		}
		file.Data = []byte(text)
		out = append(out, file)
	}
	return out
}

// registryOf is the name of a registry in references, of the host that serves it.
func registryOf(host string) string {
	if host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}

// serverOf is the host that serves a registry.
func serverOf(name string) string {
	if name == "docker.io" {
		return "registry-1.docker.io"
	}
	return name
}

// validHost reports whether a name can be a directory of certs.d.
func validHost(name string) bool {
	if name == "*" {
		return true
	}
	u, err := url.Parse("https://" + name)
	return err == nil && u.Host == name && name != "" && !strings.ContainsAny(name, `/\`) && name[0] != '.'
}

// address is an address of a mirror with its scheme.
func address(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = scheme(text) + "://" + text
	}
	u, err := url.Parse(text)
	if err == nil && (u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		err = errors.New("it is no address of a registry")
	}
	return u, err
}

// scheme is how a host is reached that does not say it.
func scheme(host string) string {
	name, _, _ := strings.Cut(host, "/")
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	if ip := net.ParseIP(name); name == "localhost" || ip != nil && ip.IsLoopback() {
		return "http"
	}
	return "https"
}

// hostsTOML is the file of a registry. private says that it holds credentials.
func (r *registries) hostsTOML(name string) (text string, private bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by berth migrate containerd, from %s.\n\n", r.from)
	endpoints, named := r.mirrors[name]
	if !named {
		endpoints = r.mirrors["*"]
	}
	var mirrors []*url.URL
	for _, e := range endpoints {
		u, err := address(e)
		if err != nil {
			r.c.note(r.from, fmt.Sprintf("endpoint %.200q of %s", e, name), err.Error())
			continue
		}
		if !slices.ContainsFunc(mirrors, func(m *url.URL) bool { return *m == *u }) {
			mirrors = append(mirrors, u)
		}
	}
	if name != "*" {
		server := &url.URL{Scheme: scheme(name), Host: serverOf(name)}
		if last := len(mirrors) - 1; last >= 0 && mirrors[last].Host == name {
			server, mirrors = mirrors[last], mirrors[:last]
		}
		fmt.Fprintf(&b, "server = %s\n", literal(server.String()))
		r.hostKeys(&b, server)
	}
	for _, m := range mirrors {
		fmt.Fprintf(&b, "\n[host.%s]\ncapabilities = [\"pull\", \"resolve\"]\n", literal(m.String()))
		h := r.hostKeys(&b, m)
		if basic := h.basic(); basic != "" {
			private = true
			fmt.Fprintf(&b, "[host.%s.header]\nAuthorization = %s\n", literal(m.String()), literal("Basic "+basic))
		}
		if h.token != "" {
			r.c.note(r.from, "identity token of "+m.Host, "a mirror is sent a header, and no token can be one")
		}
	}
	return b.String(), private
}

// hostKeys writes how a host is reached.
func (r *registries) hostKeys(b *strings.Builder, u *url.URL) *hostTable {
	h := r.hosts[u.Host]
	if h == nil {
		h = &hostTable{}
	}
	if u.Path != "" && u.Path != "/" && u.Path != "/v2" {
		b.WriteString("override_path = true\n")
	}
	if h.ca != "" {
		fmt.Fprintf(b, "ca = %s\n", literal(h.ca))
	}
	if h.cert != "" && h.key != "" {
		fmt.Fprintf(b, "client = [[%s, %s]]\n", literal(h.cert), literal(h.key))
	}
	if h.skip {
		b.WriteString("skip_verify = true\n")
	}
	return h
}

// basic are the credentials as HTTP has them.
func (h *hostTable) basic() string {
	if h.user != "" {
		return base64.StdEncoding.EncodeToString([]byte(h.user + ":" + h.password))
	}
	return h.auth
}

// credentials is what Docker would keep for the same hosts. A kubelet reads it and sends it with each pull.
func (r *registries) credentials() []byte {
	auths := map[string]map[string]string{}
	for name, h := range r.hosts {
		entry := map[string]string{}
		if basic := h.basic(); basic != "" {
			entry["auth"] = basic
		}
		if h.token != "" {
			entry["identitytoken"] = h.token
		}
		if name = registryOf(name); name == "docker.io" {
			name = "https://index.docker.io/v1/"
		}
		if len(entry) > 0 {
			auths[name] = entry
		}
	}
	if len(auths) == 0 {
		return nil
	}
	raw, err := json.MarshalIndent(map[string]any{"auths": auths}, "", "  ")
	if err != nil {
		return nil
	}
	return append(raw, '\n')
}

// The bounds of a certs.d.
const (
	mostHosts     = 1000
	mostHostFiles = 50
)

// certsD reads the directories that containerd has for registries: those that it is told of, or the one beside its
// file and Docker's.
func (r *registries) certsD(path, docker string) ([]File, error) {
	s := r.dirs
	dirs := filepath.SplitList(s.string())
	if len(dirs) == 0 {
		if len(r.mirrors) > 0 {
			return nil, nil
		}
		dirs = []string{filepath.Join(filepath.Dir(path), "certs.d"), docker}
		dirs = slices.DeleteFunc(dirs, absent)
		s = setting{file: path, written: []string{"config_path"}, value: strings.Join(dirs, string(filepath.ListSeparator))}
	}
	var out []File
	seen, taken := map[string]bool{}, 0
	for _, dir := range dirs {
		hosts, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if seen["_default"] { // by which containerd goes, and asks no further directory
			r.c.note(dir, "it", "an earlier directory has _default, and containerd goes by that")
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(hosts) > mostHosts {
			return nil, fmt.Errorf("%s has more than %d directories", dir, mostHosts)
		}
		for _, host := range hosts {
			if info, err := os.Stat(filepath.Join(dir, host.Name())); err != nil || !info.IsDir() || seen[host.Name()] {
				continue
			}
			seen[host.Name()] = true
			files, err := r.hostFiles(dir, host.Name())
			if err != nil {
				return nil, err
			}
			if out = append(out, files...); len(files) > 0 {
				taken++
			}
		}
	}
	if len(out) > 0 {
		r.c.carry(s, fmt.Sprintf("certs.d, %d files of %d registries", len(out), taken), "")
	}
	return out, nil
}

func absent(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// hostFiles are the files of a registry, which Berth reads as they are.
func (r *registries) hostFiles(dir, host string) ([]File, error) {
	entries, err := os.ReadDir(filepath.Join(dir, host))
	if err != nil {
		return nil, err
	}
	if len(entries) > mostHostFiles {
		r.c.note(filepath.Join(dir, host), "it", fmt.Sprintf("it has more than %d files", mostHostFiles))
		return nil, nil
	}
	var out []File
	for _, e := range entries {
		path := filepath.Join(dir, host, e.Name())
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			r.c.note(path, "it", cmp.Or(errorText(err), "it is no regular file"))
			continue
		}
		raw, err := readFile(path)
		if err != nil {
			r.c.note(path, "it", err.Error())
			continue
		}
		if e.Name() == "hosts.toml" {
			r.checkHosts(path, raw, dir)
		}
		out = append(out, File{Name: host + "/" + e.Name(), Mode: info.Mode().Perm() &^ 0o022, Data: raw})
	}
	return out, nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// copied is what becomes of a file that is taken as it is.
const copied = "a copy"

// checkHosts says what of a hosts.toml needs somebody's eyes.
func (r *registries) checkHosts(path string, raw []byte, dir string) {
	if _, err := parseTOML(raw); err != nil {
		why := "pulls from there fail: " + err.Error()
		r.c.notes = append(r.c.notes, Note{File: path, Key: "it", To: copied, Why: why})
		return
	}
	for _, below := range []string{filepath.Clean(dir), r.c.from} {
		if below == "" || !strings.Contains(string(raw), below+"/") {
			continue
		}
		why := "it names files below " + below + ", which have to stay"
		r.c.notes = append(r.c.notes, Note{File: path, Key: "it", To: copied, Why: why})
		return
	}
}
