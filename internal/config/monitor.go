package config

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const monitorName = "berth-monitor"

// MonitorPath finds the monitor: the configured one, or the one beside this program, in /usr/libexec/berth or on PATH.
func (c *Config) MonitorPath() (string, error) {
	if c.Monitor.Path != "" {
		if _, err := exec.LookPath(c.Monitor.Path); err != nil {
			return "", fmt.Errorf("find the monitor: monitor.path: %w", err)
		}
		return c.Monitor.Path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the monitor: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", fmt.Errorf("find the monitor: %w", err)
	}
	beside := filepath.Dir(self)
	for _, candidate := range []string{filepath.Join(beside, monitorName), "/usr/libexec/berth/" + monitorName, monitorName} {
		if path, err := exec.LookPath(candidate); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("find the monitor: %s is neither in %s nor in /usr/libexec/berth nor on PATH: install it, or set monitor.path", monitorName, beside)
}
