package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"berth/internal/fail"
	"berth/internal/helper"
	"berth/internal/limit"
)

// MissingPluginError says that a plugin's program is in none of the plugin directories.
type MissingPluginError struct {
	Plugin string
	Dirs   []string
}

func (e *MissingPluginError) Error() string {
	return fmt.Sprintf("CNI plugin %q is not an executable file in %s: install it there, or correct plugin_dirs", e.Plugin,
		strings.Join(e.Dirs, " or "))
}

// Details returns what to do about it.
func (e *MissingPluginError) Details() fail.Detail {
	return fail.Detail{Remedy: "install it there, or correct plugin_dirs", Key: "cni.plugin_dirs"}
}

// Unwrap returns the kind: the plugin may be installed.
func (e *MissingPluginError) Unwrap() error { return errdefs.ErrUnavailable }

// PluginError says that a plugin failed, in its own words where it has any.
type PluginError struct {
	Plugin, Verb string // such as bridge, ADD
	Network      string
	Answer       *types.Error // what the plugin said, nil if nothing that CNI knows
	Err          error        // how its process ended, with the last lines of its stderr
	Stdout       string       // the last lines of it, where that is no answer
}

// Error is clipped: it becomes a part of the node's status and of a pod's record, and a plugin may say megabytes.
func (e *PluginError) Error() string {
	text := fmt.Sprintf("CNI plugin %s (%s of network %q): ", e.Plugin, e.Verb, e.Network)
	if e.Answer == nil {
		text += strings.TrimPrefix(e.Err.Error(), e.Plugin+": ")
		if e.Stdout != "" {
			text += "; on stdout: " + e.Stdout
		}
		return fail.Clip(text)
	}
	text += e.Answer.Error()
	var ended *helper.Error
	if errors.As(e.Err, &ended) && !strings.Contains(text, ended.Stderr) {
		text += "; on stderr: " + ended.Stderr
	}
	return fail.Clip(text)
}

func (e *PluginError) Unwrap() error { return e.Err }

// find returns the path of a plugin's program.
func find(name string, dirs []string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return "", fmt.Errorf("CNI plugin type %q must be a file name without a directory", name)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", &MissingPluginError{Plugin: name, Dirs: dirs}
}

// call is one run of the plugins of a list with one verb.
type call struct {
	settings func() *Config // those in force
	run      runProgram
	log      *slog.Logger
	name     string // under which programs run
	verb     string
	conf     *netconf
	pod      string // "" for a verb that is about no pod
	netns    string
	on       *attached

	answer []byte // what the last plugin that succeeded wrote to stdout
}

// one runs one plugin of the list and returns its result, nil for a verb without one.
func (c *call) one(ctx context.Context, p plugin, prev json.RawMessage) (types.Result, error) {
	path, err := find(p.Type, c.settings().PluginDirs)
	if err != nil {
		return nil, err
	}
	conf, err := c.config(p, prev)
	if err != nil {
		return nil, err
	}
	var result types.Result
	if c.verb == "ADD" {
		result, err = invoke.ExecPluginWithResult(ctx, path, conf, c.args(), c)
	} else {
		err = invoke.ExecPluginWithoutResult(ctx, path, conf, c.args(), c)
	}
	var failed *PluginError
	if err == nil || errors.As(err, &failed) {
		return result, err
	}
	err = fmt.Errorf("its answer is not a CNI result: %w", err)
	return nil, &PluginError{p.Type, c.verb, c.conf.Name, nil, err, lastLines(c.answer)}
}

// config is what the plugin reads: its own part of the list, and what CNI adds to it.
func (c *call) config(p plugin, prev json.RawMessage) ([]byte, error) {
	conf := map[string]json.RawMessage{}
	if err := json.Unmarshal(p.Raw, &conf); err != nil {
		return nil, fmt.Errorf("configuration of CNI plugin %s: %w", p.Type, err)
	}
	conf["name"], conf["cniVersion"] = quoted(c.conf.Name), quoted(c.conf.Version)
	if prev != nil {
		conf["prevResult"] = prev
	}
	if c.on == nil {
		return json.Marshal(conf)
	}
	wanted := map[string]json.RawMessage{}
	for name, value := range c.on.Capabilities {
		if p.Capabilities[name] {
			wanted[name] = value
		}
	}
	if len(wanted) > 0 {
		data, err := json.Marshal(wanted)
		if err != nil {
			return nil, err
		}
		conf["runtimeConfig"] = data
	}
	return json.Marshal(conf)
}

func quoted(s string) json.RawMessage {
	data, _ := json.Marshal(s) // a string always has a JSON form
	return data
}

func (c *call) args() *invoke.Args {
	a := &invoke.Args{
		Command: c.verb, ContainerID: c.pod, NetNS: c.netns,
		Path: strings.Join(c.settings().PluginDirs, string(os.PathListSeparator)),
	}
	if c.on != nil {
		a.IfName, a.PluginArgs = c.on.IfName, c.on.Args
	}
	return a
}

// ExecPlugin runs a plugin so that nothing of it is left: the invoke.Exec of libcni. What one that succeeds has written
// to stderr is logged.
func (c *call) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	plugin := filepath.Base(path)
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		answer, stderr := &bounded{left: int(limit.CNIAnswer.Limit)}, &helper.Tail{}
		cmd := exec.Command(path)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), answer, stderr
		err := c.run(ctx, c.name, cmd)
		if err == nil {
			if said := stderr.Lines(); said != "" {
				c.log.Debug("a CNI plugin wrote to stderr", "plugin", plugin, "verb", c.verb, "pod", c.pod, "stderr", said)
			}
			c.answer = answer.data
			return answer.data, nil
		}
		if answer.left < 0 {
			err, answer.data = limit.CNIAnswer.Exceeded(), nil
		}
		// A program that is being replaced is busy for as long as it is open for writing.
		if errors.Is(err, syscall.ETXTBSY) && wait < 2*time.Second && sleep(ctx, wait) {
			continue
		}
		failed := &PluginError{plugin, c.verb, c.conf.Name, errorIn(answer.data), err, ""}
		if failed.Answer == nil {
			failed.Stdout = lastLines(answer.data)
		}
		return nil, failed
	}
}

func lastLines(output []byte) string {
	tail := &helper.Tail{}
	_, _ = tail.Write(output)
	return tail.Lines()
}

// errorIn is the error that a plugin wrote to stdout, nil if it wrote none.
func errorIn(answer []byte) *types.Error {
	e := &types.Error{}
	if json.Unmarshal(answer, e) != nil || e.Msg == "" {
		return nil
	}
	e.Msg, e.Details = fail.Clip(e.Msg), fail.Clip(e.Details)
	return e
}

// sleep reports whether ctx lasted as long.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// FindInPath is part of invoke.Exec.
func (c *call) FindInPath(name string, dirs []string) (string, error) { return find(name, dirs) }

// Decode is part of invoke.Exec.
func (c *call) Decode(answer []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(answer)
}

// bounded keeps what is written to it, and refuses more than it may keep.
type bounded struct {
	data []byte
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, limit.CNIAnswer.Exceeded()
	}
	b.data = append(b.data, p...)
	return len(p), nil
}
