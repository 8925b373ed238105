package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// longest are the packages whose tests take longest, the longest first. go test begins packages in the order in which
// they are named; one of these that began last would run alone at the end.
var longest = []string{
	"internal/image", "internal/runtime", "bench/internal/pull", "internal/network", "internal/image/layer", "cmd/berth",
	"internal/image/slots", "internal/image/inflate", "bench/internal/attack", "internal/rootfs", "internal/image/remote",
	"bench/internal/link", "internal/cli", "internal/stream", "internal/spec", "internal/preload",
	"internal/callers",
}

// ruleTests reads the source of all packages and shares nothing between goroutines. With the race detector it would
// take five times as long, and find nothing.
const ruleTests = "berth/test/rules"

// packagesPerCore is how many packages are tested at once on each core. Most tests wait for other processes more than
// they compute.
const packagesPerCore = 3

// raceOptions shortens how long the race detector waits at the end of each process for races in the threads that are
// left. It is a second by default, which is most of what a small package takes.
const raceOptions = "atexit_sleep_ms=50"

// runUnit runs every package but those that have a section of their own.
func runUnit(t *tally) {
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		t.fail("go list", err.Error())
		return
	}
	atOnce := fmt.Sprintf("-p=%d", packagesPerCore*runtime.NumCPU())
	args := []string{"-timeout=10m", atOnce, "-parallel=8", // tests that are parallel mostly wait
		comparisons("-skip") + "|" + costs}
	t.goTest(append(slices.Clone(args), ruleTests)...)
	if *race {
		args = append(args, "-race")
		_ = os.Setenv("GORACE", strings.TrimSpace(raceOptions+" "+os.Getenv("GORACE"))) // of two values the last counts
	}
	t.goTest(append(slices.Clone(args), unitPackages(strings.Fields(string(out)))...)...)
	t.goTest(append(args, "-tags=berth_fault", "./internal/fault")...)
}

// unitPackages are those of all packages that are not tested elsewhere, in the order in which they begin.
func unitPackages(all []string) []string {
	var first, rest []string
	for _, name := range longest {
		if p := "berth/" + name; slices.Contains(all, p) {
			first = append(first, p)
		}
	}
	for _, p := range all {
		if !ofAnother(p) && !slices.Contains(first, p) {
			rest = append(rest, p)
		}
	}
	return append(first, rest...)
}

// ofAnother says whether a package belongs to another section than unit, or to a run of its own there.
func ofAnother(p string) bool {
	return p == ruleTests || slices.Contains([]string{"e2e", "registry", "crash"}, strings.TrimPrefix(p, "berth/test/"))
}
