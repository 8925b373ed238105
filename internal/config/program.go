package config

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// MonitorPath finds the monitor: the configured one, or the one beside this program, in /usr/libexec/berth or on PATH.
func (c *Config) MonitorPath() (string, error) {
	return program{"monitor", "berth-monitor", "monitor.path"}.find(c.Monitor.Path)
}

// UnpackerPath finds the unpacker: the configured one, or the one beside this program, in /usr/libexec/berth or on
// PATH.
func (c *Config) UnpackerPath() (string, error) {
	return program{"unpacker", "berth-unpack", "images.unpacker"}.find(c.Images.Unpacker)
}

// program is one that belongs to Berth.
type program struct{ what, name, key string }

func (p program) find(configured string) (string, error) {
	if configured != "" {
		if _, err := exec.LookPath(configured); err != nil {
			return "", fmt.Errorf("find the %s: %s: %w", p.what, p.key, err)
		}
		return configured, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the %s: %w", p.what, err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", fmt.Errorf("find the %s: %w", p.what, err)
	}
	beside := filepath.Dir(self)
	for _, candidate := range []string{filepath.Join(beside, p.name), "/usr/libexec/berth/" + p.name, p.name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("find the %s: %s is neither in %s nor in /usr/libexec/berth nor on PATH: install it, or set %s",
		p.what, p.name, beside, p.key)
}

// What images.unpack may be.
const (
	UnpackInDaemon  = "daemon"
	UnpackInProcess = "process" // of its own for each layer, confined
)
