package network

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"berth/internal/fault"
)

// cutOff is the plugin bridge, which is killed once: in a DEL when it has removed the interface, or at the end of
// an ADD, when the interface was removed meanwhile. By the interface's addresses it would have found its rules.
const cutOff = `d=$(dirname "$0"); real=/usr/lib/cni/bridge; [ -x $real ] || real=/opt/cni/bin/bridge
gone() { nsenter --net="$CNI_NETNS" ip link del "$CNI_IFNAME"; kill -9 $$; }
case $CNI_COMMAND in
ADD) if [ -e "$d/add" ]; then rm "$d/add"; $real >/dev/null; gone; fi ;;
DEL) if [ -e "$d/del" ]; then rm "$d/del"; gone; fi ;;
esac
exec $real`

// TestRulesOfCutOffPlugins has plugins be killed where no later DEL finds their rules. These are gone all the same,
// and those of another pod stay.
func TestRulesOfCutOffPlugins(t *testing.T) {
	dir, change := script(t, "bridge", cutOff)
	h := newHost(t, bridgeDual, change)
	other := h.pod(Port{HostPort: 8098, ContainerPort: 80})
	h.attach(other)
	before := rules(t)
	for _, verb := range []string{"add", "del"} {
		p := h.pod(Port{HostPort: 8099, ContainerPort: 80})
		output(t, "touch", dir+"/"+verb)
		_, err := h.Attach(context.Background(), p)
		if verb == "del" {
			must(t, err)
			err = h.Detach(context.Background(), p)
		}
		var failed *PluginError
		if !errors.As(err, &failed) {
			t.Fatalf("%s: the plugin was killed, and %v", verb, err)
		}
		if !strings.Contains(rules(t), p.ID) {
			t.Errorf("%s: the plugin has left no rule that could be lost", verb)
		}
		h.open() // the next daemon finds them, too
		h.detach(p)
		if now := rules(t); now != before {
			t.Errorf("%s: the rules were\n%s\nand are\n%s", verb, before, now)
		}
	}
	h.detach(other)
}

// TestRulesOfChangedInterfaces has a pod's interface be another one when the pod is detached. bridge finds its rules by
// the addresses of that interface, and says that all went well without it. newHost wants no rule left.
func TestRulesOfChangedInterfaces(t *testing.T) {
	for name, change := range map[string]string{
		"removed":      "ip link del eth0",
		"renamed":      "ip link set eth0 down && ip link set eth0 name other",
		"without IPv6": "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6",
		"destroyed":    "",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, bridgeDual)
			p := h.pod()
			h.attach(p)
			if change == "" {
				must(t, Unpin(Namespaces{Net: p.NetNS}))
			} else {
				output(t, "nsenter", "--net="+p.NetNS, "sh", "-c", change)
			}
			h.detach(p)
		})
	}
}

// TestLookForRulesThatIsCutOff ends the time for a DEL while it looks for what a plugin has left that was killed. The
// attachment stays, so that the next DEL looks again.
func TestLookForRulesThatIsCutOff(t *testing.T) {
	for _, tool := range []string{"iptables-save", "iptables-restore", "ip6tables-save", "ip6tables-restore"} {
		t.Run(tool, func(t *testing.T) {
			dir, change := script(t, "bridge", cutOff)
			var end context.CancelCauseFunc
			h := newHost(t, bridgeDual, change, func(c *Config) {
				run := c.Run
				c.Run = func(ctx context.Context, name string, cmd *exec.Cmd) error {
					if strings.HasSuffix(cmd.Path, "/"+tool) && end != nil {
						end(errors.New("the time is over"))
					}
					return run(ctx, name, cmd)
				}
			})
			before := rules(t)
			p := h.pod(Port{HostPort: 8096, ContainerPort: 80})
			h.attach(p)
			output(t, "touch", dir+"/del")
			if err := h.Detach(t.Context(), p); err == nil || !strings.Contains(rules(t), p.ID) {
				t.Fatalf("the plugin was killed, and has left no rule that could be lost: %v", err)
			}
			var ctx context.Context
			ctx, end = context.WithCancelCause(t.Context())
			err := h.Detach(ctx, p)
			var failed *DetachError
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), "the time is over") {
				t.Errorf("%v", err)
			}
			if ids, err := h.Attachments(); err != nil || len(ids) != 1 {
				t.Errorf("attachments %v, %v", ids, err)
			}
			end = nil
			h.detach(p)
			if now := rules(t); now != before {
				t.Errorf("the rules were\n%s\nand are\n%s", before, now)
			}
		})
	}
}

// cutOffTool is iptables, which is killed once: when portmap has it remove a chain that it makes just for that, in case
// an earlier release has left one. portmap does not mind.
const cutOffTool = `case "$*" in *"-X CNI-SN-"*) if mkdir "$0.once" 2>/dev/null; then kill -9 $$; fi ;; esac
exec /usr/sbin/iptables "$@"`

// TestChainOfACutOffTool has a program be killed that a plugin runs, and the plugin say that all went well.
func TestChainOfACutOffTool(t *testing.T) {
	h := newHost(t, bridgeV4)
	p := h.pod(Port{HostPort: 8097, ContainerPort: 80})
	h.attach(p)
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/iptables", []byte("#!/bin/sh\n"+cutOffTool), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	h.detach(p)
	if _, err := os.Stat(dir + "/iptables.once"); err != nil {
		t.Skip("these plugins make no such chain: ", err)
	}
	for _, chain := range podChains("pods", p.ID) {
		if strings.Contains(output(t, "iptables-save", "-t", "nat"), chain) {
			t.Errorf("the chain %s is left", chain)
		}
	}
}

// TestOnlyCutOffPluginsAreLookedAfter counts the programs that a pod costs whose plugins end well: rules are looked
// for where something was cut off or changed alone, and not after a boot.
func TestOnlyCutOffPluginsAreLookedAfter(t *testing.T) {
	if fault.Enabled {
		t.Skip("counts in the normal build")
	}
	var ran []string
	counting := func(c *Config) {
		run := c.Run
		c.Run = func(ctx context.Context, name string, cmd *exec.Cmd) error {
			ran = append(ran, cmd.Path)
			return run(ctx, name, cmd)
		}
	}
	h := newHost(t, bridgeV4, counting)
	p := h.pod()
	h.attach(p)
	h.detach(p)
	must(t, Unpin(Namespaces{Net: p.NetNS}))
	h = newHost(t, strings.Replace(bridgeV4, `"ipMasq": true`, `"ipMasq": false`, 1), counting)
	p = h.pod()
	h.attach(p)
	h.ofAnotherBoot(p)
	h.detach(p)
	for _, path := range ran {
		if strings.Contains(path, "tables") {
			t.Errorf("ran %v", ran)
		}
	}
}

// TestLeftRules picks a pod's rules out of a table, in whatever pieces it comes. What only looks like them stays.
func TestLeftRules(t *testing.T) {
	pod := strings.Repeat("ab", 32)
	chains := podChains("pods", pod)
	mine := `POSTROUTING -s 10.77.0.3/32 -m comment --comment "name: \"pods\" id: \"` + pod + `\"" -j ` + chains[0]
	table := strings.Join([]string{
		"# Generated", "*nat", ":PREROUTING ACCEPT [0:0]", ":" + chains[0] + " - [0:0]", ":" + chains[1] + "x - [0:0]",
		":" + chains[1] + " - [0:0]", "-A " + mine, "-A POSTROUTING -j " + chains[0] + "x",
		`-A POSTROUTING -m comment --comment "name: \"pods\" id: \"` + pod[:62] + `\"" -j MASQUERADE`,
		"-A " + chains[0] + " -d 10.77.0.0/24 -j ACCEPT", "-A CNI-HOSTPORT-DNAT -p tcp -j " + chains[1], "COMMIT", "",
	}, "\n")
	want := strings.Join([]string{
		"*nat", "-D " + mine, "-D CNI-HOSTPORT-DNAT -p tcp -j " + chains[1], "-F " + chains[0], "-F " + chains[1],
		"-X " + chains[0], "-X " + chains[1], "COMMIT", "",
	}, "\n")
	for _, size := range []int{1, 7, 1 << 20} {
		l := &leftRules{chains: chains, comment: `id: \"` + pod + `\"`}
		for rest := table; rest != ""; {
			n := min(size, len(rest))
			if _, err := l.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if got := string(l.undo()); got != want {
			t.Errorf("in pieces of %d:\n%s\nwant\n%s", size, got, want)
		}
	}
	l := &leftRules{chains: podChains("pods", strings.Repeat("cd", 32)), comment: "none"}
	if _, err := l.Write([]byte(table)); err != nil || l.undo() != nil {
		t.Errorf("of another pod: %v, %s", err, l.undo())
	}
	if _, err := l.Write(make([]byte, longestRule+1)); err == nil {
		t.Error("a line without an end is taken")
	}
}
