package conformance

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
	"time"
)

const tenth = 100 * time.Millisecond

// phase is one run of the suite, with a kubelet of its own.
type phase struct {
	name      string
	processes int // of the suite: each runs a spec at a time
	limit     time.Duration
	gates     string   // feature gates of the kubelet
	labels    string   // which specs, as an expression of Ginkgo
	focus     string   // of these, those whose names match
	specs     []string // in place of labels and focus: these
}

// statsGate has the kubelet take statistics of pods and containers from the runtime alone.
const statsGate = "PodAndContainerStatsFromCRI=true"

// whole is every spec that can say something of a container runtime here.
var whole = []phase{
	{name: "conformance", processes: 10, limit: 90 * time.Minute,
		labels: "NodeConformance && !Serial && !Disruptive"},
	{name: "serial", processes: 1, limit: 90 * time.Minute,
		labels: "NodeConformance && Serial"},
	{name: "stats", processes: 1, limit: 30 * time.Minute, gates: statsGate,
		labels: "!Serial", focus: "Summary API|ResourceMetrics"},
	{name: "features", processes: 10, limit: 90 * time.Minute,
		labels: "!NodeConformance && !Serial && !Disruptive && !Slow && " +
			"!(/Feature:(StandaloneMode|CriProxy|PodLevelResources)/)",
		focus: strings.Join([]string{
			`\[Conformance\]`, "ImageVolume", "UserNamespacesSupport", "SupplementalGroupsPolicy", "Feature:HostAccess",
			"Pod InPlace Resize Container", "RestartAllContainers", "container restart policy", "FileKeyRef", "RuntimeClass",
			"Variable Expansion", "PodTemplates", "Lease",
		}, "|")},
}

// beyond are specs that a whole run leaves out: they wait for what is not there, for minutes each.
var beyond = []string{
	"Swap",               // the machine has none
	"with SRIOV devices", // nor such devices
	"SRIOV devices in the system with",
	"temporarily down",              // stops the unit of the runtime, over D-Bus: in the virtual machine
	"volume failing to unmount",     // an NFS server
	"with credential provider",      // a plugin of a public cloud
	"back-off", "ImageMaximumGCAge", // count minutes of the kubelet alone
}

// The lists of the smoke sets: on this machine, and in a virtual one.
var (
	//go:embed smoke.txt
	smokeText string
	//go:embed smoke-vm.txt
	smokeVMText string
)

// smoke are the phases of a smoke set: the specs of its list, so many at once, those that name a feature gate with it.
// Those that are known not to pass are left out: some wait for minutes before they say so.
func smoke(list string, at int, known map[string]Entry) []phase {
	usual := phase{name: "smoke", processes: at, limit: 15 * time.Minute}
	gated := phase{name: "smoke-stats", processes: 2, limit: 15 * time.Minute, gates: statsGate}
	for _, line := range strings.Split(list, "\n") {
		name := strings.TrimSpace(line)
		_, listed := known[name]
		switch {
		case name == "" || strings.HasPrefix(name, "#") || listed:
		case strings.HasSuffix(name, gated.mark()):
			gated.specs = append(gated.specs, name)
		default:
			usual.specs = append(usual.specs, name)
		}
	}
	return []phase{usual, gated}
}

// mark is what the names of specs end with that run with feature gates: without them they are others.
func (p phase) mark() string {
	if p.gates == "" {
		return ""
	}
	return " {" + p.gates + "}"
}

// selection are the flags of Ginkgo that choose the specs.
func (p phase) selection() []string {
	if len(p.specs) == 0 {
		flags := []string{"--label-filter=" + p.labels, "--skip=" + strings.Join(beyond, "|")}
		if p.focus != "" {
			flags = append(flags, "--focus="+p.focus)
		}
		return flags
	}
	var exact []string
	for _, name := range p.specs {
		words := strings.Fields(strings.TrimSuffix(name, p.mark()))
		for i, w := range words {
			words[i] = regexp.QuoteMeta(w)
		}
		exact = append(exact, strings.Join(words, `\s+`)+"$")
	}
	slices.Sort(exact)
	return []string{"--focus=" + strings.Join(exact, "|")}
}
