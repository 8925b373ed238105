package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/record"
	"berth/internal/userns"
)

// trialIDs are those of the user namespace of a trial: some that are not in use.
var trialIDs = userns.Mapping{UIDs: []userns.Range{{Host: 1 << 30, Size: 65536}},
	GIDs: []userns.Range{{Host: 1 << 30, Size: 65536}}}

// TryUserns finds out whether a runtime can make a container in a user namespace that is there already, as
// TryRuntime does for other containers; holder is the program that makes the namespace, see userns.Hold.
func TryUserns(ctx context.Context, r Runtime, stateDir, driver, holder string,
	run func(ctx context.Context, name string, cmd *exec.Cmd) error) error {
	t := newTrial(r, stateDir, run)
	t.systemd, t.id, t.dir = driver == SystemdDriver, t.id+"-userns", t.dir+"-userns"
	if err := t.undo(ctx); err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // the holder dies with its thread
		defer goruntime.UnlockOSThread()
		done <- t.inUserns(ctx, holder)
	}()
	return errors.Join(<-done, t.undo(ctx))
}

func (t *trialContainer) inUserns(ctx context.Context, holder string) error {
	h, err := userns.Hold(holder, 0, trialIDs)
	if err != nil {
		return err
	}
	defer h.End()
	t.userns = h.Path("user")
	return t.create(ctx)
}

// joinUserns puts the container into the user namespace, whose root is to own the root of the container and to come to
// it.
func (t *trialContainer) joinUserns(s *specs.Spec) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: t.userns})
	id := []specs.LinuxIDMapping{{HostID: trialIDs.UIDs[0].Host, Size: trialIDs.UIDs[0].Size}}
	s.Linux.UIDMappings, s.Linux.GIDMappings = id, id
}

func (t *trialContainer) giveRoot(root string) error {
	id := int(trialIDs.UIDs[0].Host)
	for _, dir := range []string{t.dir, filepath.Dir(root)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	return filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, id, id))
	})
}

// usernsOutcomes is the record of which runtimes can do user namespaces.
var usernsOutcomes = record.Kind{Name: "runtime-features", Version: 1, Oldest: 1}

// UsernsRuntimes says of each runtime, by its name, why it cannot make containers in user namespaces; nil if it can. It
// tells of each as soon as it knows, first those of which it knows it from before: to try one that hangs takes long.
// The outcome of try is kept in cacheFile, and one that failed is tried again by the next daemon. An error is only of
// the cache that could not be written.
func UsernsRuntimes(ctx context.Context, cacheFile string, facts Facts, found []Runtime,
	try func(ctx context.Context, r Runtime) error, tell func(name string, why error)) (map[string]error, error) {
	var kept, fresh []outcome
	// A cache that cannot be read is as good as none.
	if _, err := usernsOutcomes.Read(cacheFile, &kept); err != nil {
		kept = nil
	}
	all := map[string]error{}
	knows := func(r Runtime, why error) {
		all[r.Name] = why
		tell(r.Name, why)
	}
	subjects, tries := map[string]outcome{}, []Runtime{}
	for _, r := range found {
		subject, err := subjectOf(r, facts)
		switch {
		case err != nil:
			knows(r, err)
		case slices.ContainsFunc(kept, func(k outcome) bool { return k.Works && k.about(subject) }):
			subject.Works = true
			fresh = append(fresh, subject)
			knows(r, nil)
		default:
			subjects[r.Name], tries = subject, append(tries, r)
		}
	}
	for _, r := range tries {
		err := try(ctx, r)
		if err == nil {
			subject := subjects[r.Name]
			subject.Works = true
			fresh = append(fresh, subject)
		}
		knows(r, err)
	}
	if len(tries) == 0 {
		return all, nil
	}
	err := os.MkdirAll(filepath.Dir(cacheFile), 0o755)
	if err == nil {
		err = usernsOutcomes.Write(cacheFile, fresh)
	}
	if err != nil {
		return all, fmt.Errorf("keep which runtimes can do user namespaces: %w", err)
	}
	return all, nil
}
