package network

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// firewalled is a chain of plugins whose last is %LAST%. firewall goes by the result of the plugins before it, in ADD
// and DEL.
const firewalled = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "%BRIDGE%", "isGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "dataDir": "%LEASES%", "ranges": [[{"subnet": "10.77.0.0/24"}]],
	          "routes": [{"dst": "0.0.0.0/0"}]}},
	{"type": "firewall", "backend": "iptables"},
	{"type": "%LAST%"}]}`

// filtered wants an address be in rules of the filter table, or not.
func filtered(t *testing.T, address string, want bool) {
	t.Helper()
	if table := output(t, "iptables-save", "-t", "filter"); strings.Contains(table, address+"/32") != want {
		t.Errorf("%s has rules: %v, wanted %v:\n%s", address, !want, want, table)
	}
}

// TestRulesOfAChainThatFails has the last plugin of a chain refuse an ADD: DEL of those before it finds what they made.
func TestRulesOfAChainThatFails(t *testing.T) {
	_, change := script(t, "refuses", "[ $CNI_COMMAND != ADD ] || {\n"+refusing+"\n}")
	h := newHost(t, strings.Replace(firewalled, "%LAST%", "refuses", 1), change)
	p := h.pod()
	h.fails(p)
	filtered(t, "10.77.0.2", true)
	h.open()
	h.detach(p)
	filtered(t, "10.77.0.2", false)
}

// TestRulesOfAnAddThatWasCutOff kills the daemon during the last plugin of a chain.
func TestRulesOfAnAddThatWasCutOff(t *testing.T) {
	dir, change := script(t, "hangs", hanging)
	h := newHost(t, strings.Replace(firewalled, "%LAST%", "hangs", 1), change)
	p := h.name()
	cmd := h.daemon(p, false)
	must(t, cmd.Start())
	pid := written(t, filepath.Join(dir, "hangs.pid"))
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	filtered(t, "10.77.0.2", true)
	h.recover(p)
	ends(t, pid)
	filtered(t, "10.77.0.2", false)
}

// TestPartialResultInAnotherVersion has a chain be mended with another version of CNI: DEL by that gets what the
// plugins said in it.
func TestPartialResultInAnotherVersion(t *testing.T) {
	dir, change := script(t, "spy", spy)
	must(t, os.WriteFile(dir+"/refuses", []byte("#!/bin/sh\n"+refusing), 0o755))
	h := newHost(t, `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "spy"}, {"type": "refuses"}]}`, change)
	p := h.pod()
	h.fails(p)
	h.write("10-test.conflist", `{"cniVersion": "0.4.0", "name": "n", "plugins": [{"type": "spy"}]}`)
	h.open()
	h.detach(p)
	conf, _ := spied(t, dir, "DEL")
	var prev struct {
		Version string `json:"cniVersion"`
		IPs     []struct{ Version, Address string }
	}
	must(t, json.Unmarshal(conf["prevResult"], &prev))
	if prev.Version != "0.4.0" || len(prev.IPs) != 1 || prev.IPs[0].Version != "4" ||
		prev.IPs[0].Address != "10.9.8.7/24" {
		t.Errorf("prevResult %s", conf["prevResult"])
	}
}
