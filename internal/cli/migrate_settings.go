package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"berth/internal/config"
	"berth/internal/containerd"
	"berth/internal/containerd/settings"
	"berth/internal/host"
	"berth/internal/limit"
	"berth/internal/spec"
)

// Where what is taken over goes, below the directory of Berth's configuration.
const (
	migratedSettings    = "conf.d/40-containerd.toml"
	migratedPins        = "conf.d/41-containerd-pinned.toml"
	migratedCredentials = "containerd-credentials.json"
)

// placer writes files into a directory that may have them already.
type placer struct {
	out       io.Writer
	dir       string
	dryRun    bool
	overwrite bool
	kept      int // files that are another than they would be
}

// put writes a file, unless there is one.
func (p *placer) put(name string, mode fs.FileMode, data []byte) error {
	return p.place(name, mode, data, p.overwrite, "replaced")
}

// add writes a file with data that has all that is in the file already.
func (p *placer) add(name string, mode fs.FileMode, data []byte) error {
	return p.place(name, mode, data, true, "added to")
}

// place writes a file; over one that is there only if it may, and tells of that as changed.
func (p *placer) place(name string, mode fs.FileMode, data []byte, over bool, changed string) error {
	path := filepath.Join(p.dir, name)
	there, err := limit.ReadFile(path, limit.ConfigFile)
	did := "written"
	switch {
	case err == nil && bytes.Equal(there, data):
		fmt.Fprintf(p.out, "%s: is here already\n", path)
		return nil
	case err == nil && !over:
		p.kept++
		fmt.Fprintf(p.out, "%s: left as it is, and is another than it would be; --overwrite replaces it\n", path)
		return nil
	case err == nil:
		did = changed
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if p.dryRun {
		fmt.Fprintf(p.out, "%s: would be %s\n", path, did)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := replaceFile(path, mode, data); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "%s: %s\n", path, did)
	return nil
}

// replaceFile writes a file that has its name only when it is whole.
func replaceFile(path string, mode fs.FileMode, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".part-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// end is an error when files were left as they are.
func (p *placer) end() error {
	if p.kept > 0 {
		return fmt.Errorf("%d files were left as they are", p.kept)
	}
	return nil
}

// configuration is the one that is in the directory.
func (p *placer) configuration() (*config.Config, error) {
	path := filepath.Join(p.dir, filepath.Base(config.DefaultPath))
	_, err := os.Stat(path)
	return config.Load(config.Flags{Path: path, PathSet: err == nil})
}

// migrateSettings turns containerd's files into Berth's.
func migrateSettings(cmd *cobra.Command, p *placer, flags migrateFlags) error {
	into, err := filepath.Abs(p.dir)
	if err != nil {
		return err
	}
	o := settings.Options{Look: lookProgram, Base: unusedParts, Dir: into,
		Path: flags.config, Registries: flags.registries, Unit: containerdUnit(cmd.Context(), flags.config, lookProgram),
		Release: containerdRelease(cmd.Context(), lookProgram), SELinux: host.SELinuxOn()}
	if _, err := os.Stat(o.Path); absent(err) && !flags.configSet {
		fmt.Fprintf(stderr(cmd), "berth: there is no %s; --config names another\n", o.Path)
		o.Path = ""
	}
	if _, err := os.Stat(o.Registries); absent(err) && !flags.regSet {
		o.Registries = ""
	}
	r, err := settings.Convert(o)
	if err != nil {
		return fmt.Errorf("the settings of containerd: %w", err)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(p.out, visibleLine(n.String()))
	}
	for _, f := range r.Bases { // before what names them
		if err := p.put(filepath.Join(settings.BaseSpecs, f.Name), f.Mode, f.Data); err != nil {
			return err
		}
	}
	if r.Config != nil {
		if _, err := readConfig(string(r.Config)); err != nil {
			return fmt.Errorf("what they would become is no configuration of Berth: %w", err)
		}
		if err := p.put(migratedSettings, 0o644, r.Config); err != nil {
			return err
		}
	}
	for _, f := range r.Hosts {
		if err := p.put(filepath.Join(settings.CertsD, f.Name), f.Mode, f.Data); err != nil {
			return err
		}
	}
	if err := putEnvironment(p, into, r.Environment); err != nil {
		return err
	}
	if r.Credentials != nil {
		if err := p.put(migratedCredentials, 0o600, r.Credentials); err != nil {
			return err
		}
		fmt.Fprintf(p.out, "the kubelet reads credentials for all pods from /var/lib/kubelet/config.json: "+
			"copy %s there\n", filepath.Join(p.dir, migratedCredentials))
	}
	if p.dryRun {
		return nil
	}
	if _, err := p.configuration(); err != nil {
		return fmt.Errorf("with the new files the configuration cannot be read: %w", err)
	}
	return nil
}

// unusedParts notes what of a base spec does not count.
func unusedParts(text []byte) (notes []settings.Note, err error) {
	base, err := spec.ParseBase(text)
	if err != nil {
		return nil, err
	}
	for _, part := range base.Unused() {
		notes = append(notes, settings.Note{Key: part.Name, Why: part.Why})
	}
	return notes, nil
}

// putEnvironment has the service of Berth reach registries as that of containerd does. Its environment is in
// default/berth beside the directory of the configuration, and what is there already stays.
func putEnvironment(p *placer, into string, env map[string]string) error {
	if len(env) == 0 {
		return nil
	}
	path := filepath.Join("..", "default", "berth")
	there, err := limit.ReadFile(filepath.Join(into, path), limit.ConfigFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return p.add(path, 0o600, settings.WithEnvironment(there, env)) // an address of a proxy may have a password
}

// askTimeout is how long a program may take to answer.
const askTimeout = 10 * time.Second

// containerdUnit is what systemd knows of the service that runs the containerd of this configuration; empty where there
// is none, or no systemd.
func containerdUnit(ctx context.Context, config string, look func(string) (string, error)) string {
	systemctl, err := look("systemctl")
	if err != nil {
		return ""
	}
	units := []string{"containerd.service"}
	if strings.Contains(config, "/rancher/") {
		units = []string{"k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	args := append([]string{"show", "--property=" + strings.Join(settings.UnitProperties, ",")}, units...)
	out, err := exec.CommandContext(ctx, systemctl, args...).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// containerdRelease is the version of the containerd that is installed, such as 2.1.4, or nothing.
func containerdRelease(ctx context.Context, look func(string) (string, error)) string {
	path, err := look("containerd")
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return ""
	}
	words := strings.Fields(string(out)) // containerd github.com/containerd/containerd/v2 v2.1.4 …
	if len(words) < 3 {
		return ""
	}
	return strings.TrimPrefix(words[2], "v")
}

// lookProgram finds a program where services find theirs.
func lookProgram(name string) (string, error) {
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fs.ErrNotExist
}

// pin has garbage collection leave alone what containerd had pinned, but for pause images, which are not needed.
func pin(p *placer, images []containerd.Image) error {
	now, err := p.configuration()
	if err != nil {
		return err
	}
	pinned := slices.Clone(now.Images.Pinned)
	for _, img := range images {
		if !img.Pinned {
			continue
		}
		for _, name := range img.Tags {
			if !strings.Contains(name[strings.LastIndexByte(name, '/')+1:], "pause") {
				pinned = append(pinned, name)
			}
		}
	}
	slices.Sort(pinned)
	pinned = slices.Compact(pinned)
	if len(pinned) == len(slices.Compact(slices.Sorted(slices.Values(now.Images.Pinned)))) {
		return nil
	}
	text, err := toml.Marshal(map[string]any{"images": map[string]any{"pinned": pinned}})
	if err != nil {
		return err
	}
	const head = "# Written by berth migrate containerd: what it had pinned.\n\n"
	return p.put(migratedPins, 0o644, append([]byte(head), text...))
}
