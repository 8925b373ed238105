package network

import (
	"bytes"
	"context"
	"crypto/sha512"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// chainPrefixes begin the names of chains that plugins of the CNI project make for one pod: bridge and ptp for
// masquerading, portmap for ports, and portmap of releases before 0.8 for ports too. maxChain is the length of such
// a name (plugins/pkg/utils, FormatChainName).
var chainPrefixes = []string{"CNI-", "CNI-DN-", "CNI-SN-"}

const maxChain = 28

// podChains are the chains that are a pod's alone, in a network.
func podChains(network, pod string) (names []string) {
	sum := fmt.Sprintf("%x", sha512.Sum512([]byte(network+pod)))
	for _, prefix := range chainPrefixes {
		names = append(names, (prefix + sum)[:maxChain])
	}
	return names
}

// rulesTime is how long clearRules may take. iptables-save writes a hundred thousand rules in a second or two.
const rulesTime = 30 * time.Second

// clearRules removes what plugins have left of a pod in the nat tables, of IPv4 and IPv6. bridge finds the rules to
// remove by the addresses of the pod's interface, and leaves them where that is not what it was, as after a DEL that
// was killed in the middle: no later DEL removes them. They are known by their names, which are made of the network's
// and the pod's, and by their comments, which have the pod's id. What the rules of others say is not touched. It does
// nothing where iptables is not installed, and looks for no rules of nftables.
//
// It has a time of its own: plugins may have used up that of the DEL. Where it is over before all rules were read, as
// for a table that cannot be read, the rules are left. Where ctx has ended, the next DEL has to look again.
func clearRules(ctx context.Context, run runProgram, log *slog.Logger, pod, network string) error {
	caller := ctx
	ctx, cancel := context.WithTimeout(caller, rulesTime)
	defer cancel()
	for _, family := range []string{"iptables", "ip6tables"} {
		if _, err := exec.LookPath(family + "-save"); err != nil {
			continue
		}
		left := &leftRules{chains: podChains(network, pod), comment: `id: \"` + pod + `\"`}
		save := exec.Command(family+"-save", "-t", "nat")
		save.Stdout = left
		if err := run(ctx, runName(pod), save); err != nil {
			if caller.Err() != nil {
				return fmt.Errorf("look in %s for rules that CNI plugins have left of pod %s: %w", family, pod, err)
			}
			// A kernel without the table has no rules in it. One that cannot be asked now may have.
			log.Warn("rules that CNI plugins may have left cannot be looked for",
				"pod", pod, "error", err)
			continue
		}
		undo := left.undo()
		if undo == nil {
			continue
		}
		restore := exec.Command(family+"-restore", "-n", "-w", "10")
		restore.Stdin = bytes.NewReader(undo)
		if err := run(ctx, runName(pod), restore); err != nil {
			return fmt.Errorf("remove the rules of %s that CNI plugins have left of pod %s: %w",
				family, pod, err)
		}
		log.Info("removed rules that CNI plugins had left",
			"pod", pod, "network", network, "tool", family)
	}
	return nil
}

// leftRules picks what is a pod's out of what iptables-save writes: there may be a hundred thousand rules of
// others.
type leftRules struct {
	chains  []string // that are the pod's
	comment string   // of its rules in others' chains

	line  []byte   // the beginning of one
	own   []string // the chains of it that are there
	rules []string
}

// longestRule is more than iptables can write as one line.
const longestRule = 64 << 10

// Write takes the next piece of the table.
func (l *leftRules) Write(p []byte) (int, error) {
	l.line = append(l.line, p...)
	for {
		line, rest, ok := bytes.Cut(l.line, []byte{'\n'})
		if !ok {
			break
		}
		l.take(string(line))
		l.line = append(l.line[:0], rest...)
	}
	if len(l.line) > longestRule {
		return 0, fmt.Errorf("a line is longer than %d bytes", longestRule)
	}
	return len(p), nil
}

func (l *leftRules) take(line string) {
	if name, ok := strings.CutPrefix(line, ":"); ok {
		if name, _, _ = strings.Cut(name, " "); slices.Contains(l.chains, name) {
			l.own = append(l.own, name)
		}
		return
	}
	rule, ok := strings.CutPrefix(line, "-A ")
	if !ok {
		return
	}
	in, _, _ := strings.Cut(rule, " ")
	if !slices.Contains(l.chains, in) && (strings.Contains(rule, l.comment) || leadsTo(rule, l.chains)) {
		l.rules = append(l.rules, rule)
	}
}

// undo is the input of iptables-restore that removes the pod's chains and rules; nil when there are none. A restore
// does all of it or nothing.
func (l *leftRules) undo() []byte {
	if len(l.own) == 0 && len(l.rules) == 0 {
		return nil
	}
	var all bytes.Buffer
	all.WriteString("*nat\n")
	for _, rule := range l.rules {
		all.WriteString("-D " + rule + "\n")
	}
	for _, what := range []string{"-F ", "-X "} { // emptied first: one may lead to another
		for _, name := range l.own {
			all.WriteString(what + name + "\n")
		}
	}
	all.WriteString("COMMIT\n")
	return all.Bytes()
}

// leadsTo reports whether a rule jumps into one of the chains.
func leadsTo(rule string, chains []string) bool {
	words := strings.Fields(rule)
	for i, word := range words[:max(len(words)-1, 0)] {
		if (word == "-j" || word == "-g") && slices.Contains(chains, words[i+1]) {
			return true
		}
	}
	return false
}
