package pod

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// writeFiles makes the pod's run directory with the files that its containers see under /etc.
func (m *making) writeFiles() error {
	cfg, run, ids := m.r.Config.Get(), m.p.s.cfg.run(m.p.id), idsOf(m.p, m.r)
	if err := os.MkdirAll(filepath.Join(run, "c"), 0o700); err != nil {
		return err
	}
	if err := ids.letPass(run, filepath.Join(run, "c")); err != nil {
		return err
	}
	// Containers of every user must be able to read the files through the bind mounts; the directory itself stays closed.
	name, err := m.r.hostname()
	if err != nil {
		return fmt.Errorf("look up the node's name: %w", err)
	}
	resolv, err := resolvConf(cfg.DnsConfig)
	if err != nil {
		return err
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("copy /etc/hosts: %w", err)
	}
	for file, data := range map[string][]byte{"hostname": []byte(name + "\n"), "resolv.conf": resolv, "hosts": hosts} {
		path := filepath.Join(run, file)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		if err := ids.give(path); err != nil {
			return err
		}
		if err := m.p.s.cfg.label(m.r, path); err != nil {
			return err
		}
	}
	return makeLogDirectory(cfg.LogDirectory)
}

// resolvConf is the pod's /etc/resolv.conf: what DNSConfig says, the node's own where it says nothing (see
// resolv.conf(5)).
func resolvConf(d *runtimeapi.DNSConfig) ([]byte, error) {
	if d == nil {
		data, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("copy /etc/resolv.conf: %w", err)
		}
		return data, nil
	}
	var b bytes.Buffer
	if len(d.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(d.Searches, " "))
	}
	for _, s := range d.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(d.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(d.Options, " "))
	}
	return b.Bytes(), nil
}

// makeLogDirectory makes the directory that the kubelet named for the pod's logs.
func makeLogDirectory(dir string) error {
	if dir == "" {
		return nil
	}
	return os.MkdirAll(dir, 0o755)
}
