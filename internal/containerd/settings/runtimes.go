package settings

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"berth/internal/limit"
)

// runtimes are those of containerd, which become handlers once all of them is known.
type runtimes struct {
	c        *conversion
	look     func(string) (string, error)
	base     func([]byte) ([]Note, error) // as Options.Base
	dir      string                       // where copies of base specs go
	bases    []File
	tables   map[string]keysOfRuntime
	usual    setting // default_runtime_name
	ownUsers bool    // device_ownership_from_security_context
	err      error   // what no handler can be made without
}

// keysOfRuntime is what is set of one runtime, by the names of the keys.
type keysOfRuntime map[string]setting

// take gathers what belongs together.
func (r *runtimes) take(s setting) {
	switch {
	case len(s.parts) == 4:
		r.table(s.parts[3])
	case len(s.parts) > 4:
		r.table(s.parts[3])[strings.Join(s.parts[4:], ".")] = s
	}
}

func (r *runtimes) table(name string) keysOfRuntime {
	if r.tables[name] == nil {
		r.tables[name] = keysOfRuntime{}
	}
	return r.tables[name]
}

// handlerName is what Kubernetes takes as the handler of a RuntimeClass.
var handlerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// finish turns runtimes into handlers, and says which of them is the default, which is runc in containerd.
func (r *runtimes) finish(file string) {
	usual := "runc"
	if name := r.usual.string(); name != "" {
		usual = name
	}
	if r.tables["runc"] == nil && usual == "runc" {
		r.table("runc")
	}
	done := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(r.tables)) {
		done[name] = r.handler(file, name, r.tables[name])
	}
	s := r.usual
	if s.file == "" {
		s = setting{file: file, written: []string{"default_runtime_name"}, value: usual}
	}
	switch {
	case done[usual]:
		r.c.become(s, "runtimes.default", usual)
	case r.usual.file != "":
		r.c.drop(s, "that runtime is not carried over; Berth takes crun or runc")
	}
	r.driver(file, usual)
}

// driver is who makes the cgroups of containers, which is one for all in Berth: in containerd the first runtime of the
// kind of runc says it, of which the default comes first, and where it says nothing it is cgroupfs.
func (r *runtimes) driver(file, usual string) {
	if r.c.tree["cgroup_driver"] != nil {
		return
	}
	names := slices.Sorted(maps.Keys(r.tables))
	if i := slices.Index(names, usual); i >= 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, usual)
	}
	i := slices.IndexFunc(names, func(name string) bool { return r.tables[name].isRunc() })
	if i < 0 {
		return
	}
	s, said := r.tables[names[i]]["options.SystemdCgroup"]
	if !said {
		written := []string{"runtimes", names[i], "options", "SystemdCgroup"}
		s = setting{file: file, written: written, value: false, unsaid: true}
	}
	driver := map[bool]string{true: "systemd", false: "cgroupfs"}[s.value == true]
	r.c.become(s, "cgroup_driver", driver)
	for _, name := range names {
		if other, ok := r.tables[name]["options.SystemdCgroup"]; ok && other.value != s.value {
			r.c.drop(other, "all handlers have one cgroup driver, which is that of the default")
		}
	}
}

// isRunc says that a runtime is called as runc is.
func (k keysOfRuntime) isRunc() bool { return slices.Contains(runcTypes, k["runtime_type"].string()) }

// runcTypes are the types of runtimes that are called as runc is.
var runcTypes = []string{"", "io.containerd.runc.v2", "io.containerd.runc.v1", "io.containerd.runtime.v1.linux"}

// runtimeKeys are what becomes of the keys of a runtime, beside those that say which program it is.
var runtimeKeys = []rule{
	{key: "privileged_without_host_devices"}, {key: "cgroup_writable"}, {key: "pod_annotations"},
	{key: "container_annotations"}, {key: "base_runtime_spec"},
	{key: "privileged_without_host_devices_all_devices_allowed", why: "a privileged container may use the devices " +
		"that it has"},
	{key: "runtime_path", why: "Berth runs OCI runtimes, and no shims"},
	{key: "cni_conf_dir", why: "all handlers have the networks of cni.config_dir"},
	{key: "cni_max_conf_num", why: "a pod has one network"},
	{key: "snapshotter", usual: []any{"overlayfs"}, why: oneStore},
	{key: "sandbox_mode", usual: []any{"podsandbox"}, why: "Berth has no other sandboxes"},
	{key: "sandboxer", usual: []any{"podsandbox"}, why: "Berth has no other sandboxes"},
	{key: "disable_pause_image_pull"},
	{key: "io_type", usual: []any{"fifo"}, why: "monitors hold the streams of containers"},
	{key: "runtime_root", why: "Berth has runtimes keep their state in its own"},
	{key: "options.Root", why: "Berth has runtimes keep their state in its own"},
	{key: "options.NoPivotRoot", why: "containers always get a root that was pivoted to"},
	{key: "options.NoNewKeyring", why: "containers always get a keyring of their own"},
	{key: "options.ShimCgroup", why: "Berth has no shims"},
	{key: "options.IoUid", why: "monitors hold the streams of containers"},
	{key: "options.IoGid", why: "monitors hold the streams of containers"},
	{key: "options.CriuPath", why: noCheckpoints}, {key: "options.CriuImagePath", why: noCheckpoints},
	{key: "options.CriuWorkPath", why: noCheckpoints},
	{key: "runtime_type"}, {key: "runtime_engine"}, {key: "options.BinaryName"}, {key: "options.SystemdCgroup"},
	{key: "options.TypeUrl"}, {key: "options.ConfigPath"}, {key: "options"},
}

const noCheckpoints = "Berth makes no checkpoints"

// handler makes a handler of a runtime, and reports whether there is one now.
func (r *runtimes) handler(file, name string, keys keysOfRuntime) bool {
	whole := setting{file: file, written: []string{"runtimes." + name}, value: map[string]any{}}
	if s, ok := keys["runtime_type"]; ok {
		whole = s
	}
	if !handlerName.MatchString(name) {
		r.c.drop(whole, fmt.Sprintf("%q can name no handler: a-z, 0-9 and - can", name))
		return false
	}
	binary := keys["options.BinaryName"].string()
	if binary == "" {
		binary = keys["runtime_engine"].string()
	}
	table := map[string]any{}
	switch {
	case keys.isRunc():
		if binary == "" {
			binary = "runc"
		}
	case keys["runtime_type"].string() == "io.containerd.runsc.v1":
		binary = "runsc"
		table["driver"] = "oci-infra"
		table["args"] = r.runscArgs(keys)
	default:
		r.c.drop(whole, "Berth runs OCI runtimes, and no shims")
		return false
	}
	program := binary
	if !filepath.IsAbs(program) {
		var err error
		if program, err = r.look(binary); err != nil {
			r.c.drop(whole, fmt.Sprintf("there is no %s on this machine; install it, and add [runtimes.%s] with its "+
				"path", binary, name))
			return false
		}
	}
	r.handlerKeys(name, table, keys)
	if r.ownUsers {
		table["device_ownership_from_security_context"] = true
	}
	if len(table) == 0 && name == binary { // Berth looks for these itself
		return name == "runc" || name == "crun"
	}
	table["path"] = filepath.Clean(program)
	r.c.set("runtimes."+name, table)
	r.c.carry(whole, fmt.Sprintf("[runtimes.%s], path = %s", name, literal(table["path"])), "")
	return true
}

// handlerKeys takes over what a handler has, too.
func (r *runtimes) handlerKeys(name string, table map[string]any, keys keysOfRuntime) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		s := keys[key]
		if s.isZero() {
			continue
		}
		switch key {
		case "privileged_without_host_devices", "cgroup_writable":
			table[key] = true
		case "pod_annotations", "container_annotations":
			table[key] = s.strings()
		case "base_runtime_spec":
			p, err := r.baseSpec(name, s)
			if err != nil {
				r.err = errors.Join(r.err, fmt.Errorf("%s:%d: %s: %w: mend it, or take the key away, and run the command again",
					s.file, s.line, s.text(), err))
				continue
			}
			table["base_spec"] = p
			r.c.carry(s, fmt.Sprintf("base_spec = %s of the handler", literal(p)), "a copy")
			continue
		default:
			r.handlerKey(s, key)
			continue
		}
		r.c.carry(s, key+" of the handler", "")
	}
}

// baseSpec copies the base spec of a handler, since a daemon needs it long after containerd is gone, and notes what of
// it does not count. One that Berth would refuse is an error: without it the handler's containers would get more than
// they have.
func (r *runtimes) baseSpec(handler string, s setting) (path string, err error) {
	from, ok := usable(s.string())
	if !ok {
		return "", errors.New("it is no absolute path")
	}
	text, err := limit.ReadFile(from, limit.BaseSpec)
	if err != nil {
		return "", err
	}
	notes, err := r.base(text)
	if err != nil {
		return "", err
	}
	for _, n := range notes {
		n.File = from
		if !slices.Contains(r.c.notes, n) { // several handlers may have one base
			r.c.notes = append(r.c.notes, n)
		}
	}
	f := File{Name: handler + ".json", Mode: 0o644, Data: text}
	r.bases = append(r.bases, f)
	return filepath.Join(r.dir, f.Name), nil
}

// handlerKey says of a key why it is not carried over, if there is something to say.
func (r *runtimes) handlerKey(s setting, key string) {
	for _, known := range runtimeKeys {
		if known.key == key {
			if known.why != "" && !s.isOneOf(known.usual) {
				r.c.drop(s, known.why)
			}
			return
		}
	}
	r.c.drop(s, "Berth knows no such setting")
}

// runscArgs are the flags of gVisor, which containerd has in a file.
func (r *runtimes) runscArgs(keys keysOfRuntime) []string {
	s := keys["options.ConfigPath"]
	args := []string{}
	if s.string() == "" {
		return args
	}
	flags, _, err := readTOML(s.string())
	if err != nil {
		r.c.drop(s, err.Error())
		return args
	}
	config, _ := flags["runsc_config"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(config)) {
		if slices.Contains([]string{"root", "log", "log-format", "systemd-cgroup"}, name) {
			continue
		}
		args = append(args, fmt.Sprintf("--%s=%v", name, config[name]))
	}
	r.c.carry(s, "args of the handler", "of [runsc_config] in that file")
	return args
}
