package host

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/record"
)

// Runtime is an OCI runtime of this machine.
type Runtime struct {
	Name    string // the handler's
	Path    string
	Args    []string // before the command, in every call
	Version string   // as it says itself; empty when it was not asked, or did not answer
	Works   bool     // it was tried, and a container came of it
	Why     string   // why it does not work
	Program string   // what it says to be, such as runc; of one that did not answer, its file's name
	Mended  []string // CVEs that its package has fixed, whatever its version

	unsure bool // the trial was cut short: it says nothing about the next one
}

// preferred are the runtimes that are looked for where none is configured, and chosen in this order: crun starts a
// container several times faster.
var preferred = []string{"crun", "runc"}

var usualPlaces = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// FindRuntimes lists the configured runtimes, by name, and crun and runc where they usually are unless handlers of
// these names are configured. The preferred come first. None has been tried.
func FindRuntimes(configured map[string]Runtime) []Runtime {
	return find(configured, usualPlaces)
}

func find(configured map[string]Runtime, places []string) []Runtime {
	all := maps.Clone(configured)
	if all == nil {
		all = map[string]Runtime{}
	}
	for _, name := range preferred {
		if all[name].Path == "" {
			all[name] = Runtime{Path: search(name, places)}
		}
	}
	var found []Runtime
	for _, name := range append(slices.Clone(preferred), slices.Sorted(maps.Keys(all))...) {
		if r := all[name]; r.Path != "" {
			found = append(found, Runtime{Name: name, Path: r.Path, Args: r.Args})
		}
		delete(all, name)
	}
	return found
}

func search(name string, places []string) string {
	for _, dir := range places {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// Named is the runtime of found that has this name. The error says where it was looked for.
func Named(found []Runtime, name string) (Runtime, error) {
	i := slices.IndexFunc(found, func(r Runtime) bool { return r.Name == name })
	if i < 0 {
		return Runtime{}, fmt.Errorf("find the runtime %s: it is in none of %s: install it, or configure [runtimes.%s] "+
			"with its path",
			name, strings.Join(usualPlaces, ", "), name)
	}
	return found[i], nil
}

// outcomes is the record of trials.
var outcomes = record.Kind{Name: "runtimes", Version: 1, Oldest: 1}

// outcome is what a trial said, and about what: another file, kernel, way of mounting cgroups or cgroup driver needs
// another trial.
type outcome struct {
	Path   string     `json:"path"`
	Args   []string   `json:"args,omitempty"`
	Size   int64      `json:"size"`
	MTime  int64      `json:"mtime"`
	Kernel string     `json:"kernel"`
	Cgroup CgroupMode `json:"cgroup"`
	Driver string     `json:"driver"`

	Version string `json:"version"`
	Works   bool   `json:"works"`
	Why     string `json:"why,omitempty"`

	// Program and Mended are Runtime's; Asked is false in records of before there was either.
	Asked   bool     `json:"asked,omitempty"`
	Program string   `json:"program,omitempty"`
	Mended  []string `json:"mended,omitempty"`
}

func (o outcome) about(other outcome) bool {
	return o.Path == other.Path && slices.Equal(o.Args, other.Args) && o.Size == other.Size && o.MTime == other.MTime &&
		o.Kernel == other.Kernel && o.Cgroup == other.Cgroup && o.Driver == other.Driver
}

// ChooseRuntime names the first runtime of found that works, and tells of all whether they do. The outcome of try is
// kept in cacheFile, whose loss costs one more trial. A failure is believed only while another runtime works: when none
// does, all are tried again, as whoever mended the machine expects. When nothing works there is no name, and the error
// says why not, one by one. An error beside a name is only of the cache that could not be written: the next start tries
// again.
func ChooseRuntime(ctx context.Context, cacheFile string, facts Facts, found []Runtime,
	try func(ctx context.Context, r Runtime) Runtime) (string, []Runtime, error) {
	var kept []outcome
	// A cache that cannot be read is as good as none.
	if _, err := outcomes.Read(cacheFile, &kept); err != nil {
		kept = nil
	}
	if !slices.ContainsFunc(kept, func(o outcome) bool { return o.Works && current(o, found, facts) }) {
		kept = nil
	}
	all, fresh, tried := tryUnknown(ctx, facts, found, kept, try)
	var unkept error
	if tried {
		unkept = store(cacheFile, fresh)
	}
	for _, r := range all {
		if r.Works {
			return r.Name, all, unkept
		}
	}
	return "", all, noneWorks(all)
}

// current reports whether an outcome is about one of found as it is now.
func current(o outcome, found []Runtime, facts Facts) bool {
	return slices.ContainsFunc(found, func(r Runtime) bool {
		subject, err := subjectOf(r, facts)
		return err == nil && o.about(subject)
	})
}

// tryUnknown takes what is known of runtimes from kept, and tries those of which nothing is known.
func tryUnknown(ctx context.Context, facts Facts, found []Runtime, kept []outcome,
	try func(context.Context, Runtime) Runtime) (all []Runtime, fresh []outcome, tried bool) {
	for _, r := range found {
		subject, err := subjectOf(r, facts)
		if err != nil {
			r.Why = err.Error()
			all = append(all, r)
			continue
		}
		if i := slices.IndexFunc(kept, subject.about); i >= 0 {
			subject = kept[i]
			r.Version, r.Works, r.Why = subject.Version, subject.Works, subject.Why
			r.Program, r.Mended = subject.Program, subject.Mended
		} else {
			r, tried = try(ctx, r), true
			subject.Version, subject.Works, subject.Why = r.Version, r.Works, r.Why
		}
		if !subject.Asked {
			r, tried = Identify(r), true
			subject.Asked, subject.Program, subject.Mended = true, r.Program, r.Mended
		}
		all = append(all, r)
		if !r.unsure {
			fresh = append(fresh, subject)
		}
	}
	return all, fresh, tried
}

// Identify tells what a runtime is, and what its package has mended in it. It reads the lists of dpkg, which takes a
// while.
func Identify(r Runtime) Runtime {
	path := r.Path
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if r.Program == "" {
		r.Program = filepath.Base(path)
	}
	r.Mended = mended("/", path)
	return r
}

func subjectOf(r Runtime, facts Facts) (outcome, error) {
	info, err := os.Stat(r.Path)
	if err != nil {
		return outcome{}, err
	}
	return outcome{Path: r.Path, Args: r.Args, Size: info.Size(), MTime: info.ModTime().UnixNano(), Kernel: facts.Kernel,
		Cgroup: facts.Cgroup, Driver: facts.CgroupDriver}, nil
}

func store(path string, fresh []outcome) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = outcomes.Write(path, fresh)
	}
	if err != nil {
		return fmt.Errorf("keep which runtimes work: %w", err)
	}
	return nil
}

func noneWorks(all []Runtime) error {
	if len(all) == 0 {
		return fmt.Errorf("choose a runtime: neither crun nor runc is in %s: install one, or configure "+
			"[runtimes.<name>] path", strings.Join(usualPlaces, ", "))
	}
	var why []string
	for _, r := range all {
		why = append(why, fmt.Sprintf("%s (%s): %s", r.Name, r.Path, r.Why))
	}
	return fmt.Errorf("choose a runtime: none works: %s", strings.Join(why, "; "))
}
