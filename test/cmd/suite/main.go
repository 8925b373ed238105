// Command suite runs the tests of this repository, section by section, and counts them.
//
//	go run ./test/cmd/suite [-race=false] [-run pattern] [section…]
//
// Its last line is "N passed, N failed". Before the first section and after the last it looks at the machine, and what
// the tests left behind is a failure.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"berth/test/hygiene"
	"berth/test/node"
	"berth/test/vm"
)

// A section is one kind of test. It reports to the tally and needs not stop at the first failure.
type section struct {
	name, title string
	run         func(*tally)
}

var sections = []section{
	{"vet", "go vet", func(t *tally) { t.command("go", "vet", "./...") }},
	{"format", "gofmt", format},
	{"staticcheck", "staticcheck", staticcheck},
	{"unit", "unit tests, with the race detector unless -race=false", runUnit},
	{"compare", "images unpacked, as nodes do it, compared with umoci and GNU tar", func(t *tally) {
		_ = os.Setenv("BERTH_TEST_CONFINED", "1") // by processes; unit tests have the daemon do it, with the race detector
		defer os.Unsetenv("BERTH_TEST_CONFINED")
		t.goTest("-count=1", "-timeout=10m", comparisons("-run"), "./internal/image")
	}},
	{"cost", "what is large, hostile or many: memory and steps, without the race detector", func(t *tally) {
		t.goTest("-count=1", "-timeout=10m", "-run="+costs, "./internal/image/...", "./internal/callers",
			"./internal/preload")
	}},
	{"demo", "what `make demo` shows", func(t *tally) { t.command("go", "run", "./demo") }},
	{"e2e", "end to end: both runtimes, real plugins, a real registry", func(t *tally) {
		t.goTest("-count=1", "-timeout=25m", "./test/e2e")                     // ends what hangs: it takes eleven minutes
		t.goTest("-count=1", "-timeout=12m", "-parallel=8", "./test/registry") // its tests mostly wait
	}},
	{"crash", "crash matrix: kill the daemon at every fault point, once", func(t *tally) {
		t.goTest("-count=1", "-timeout=10m", "-tags=berth_fault", "-run=Crash|Killed", "./internal/image",
			"./internal/network")
		t.goTest("-count=1", "-timeout=10m", "-tags=berth_fault", "-run=KilledAt", "./internal/runtime")
		t.goTest("-count=1", "-timeout=12m", "./test/crash")
	}},
	{"chaos", "random strikes under load, with fixed seeds", func(t *tally) { strike(t, fixedSeeds) }},
	{"vm", "in a virtual machine: systemd, cgroup v2, AppArmor", func(t *tally) {
		virtual(t, "vm", vmUsual, 50*time.Minute)
	}},
	{"vm-node", "in a virtual machine: the package, berth.service, a power cut", ownNode},
	{"vm-move", "in a virtual machine: a node with a kubelet moves from containerd to Berth and back", moveNode},
	{"vm-conformance", "in a virtual machine: Kubernetes' node tests on the package, a selection", conformNode},
	{"dist", "two releases of one commit are equal", twoReleases},
	{"arm64", "unit tests as programs of arm64, emulated one by one", runEmulated},
	{"vm-packages", "in a virtual machine: every package that asks something of the machine",
		whole("vm-packages", vmPackages)},
	{"vm-crun", "in a virtual machine: end to end, all of it, with crun", whole("vm-crun", vmCrun)},
	{"vm-runc", "in a virtual machine: end to end, all of it, with runc", whole("vm-runc", vmRunc)},
	{"vm-cgroupfs", "in a virtual machine: end to end, with the cgroup driver that is not systemd's",
		whole("vm-cgroupfs", vmCgroupfs)},
	{"vm-crash", "in a virtual machine: a selection of the crash matrix", whole("vm-crash", vmCrash)},
	{"vm-chaos", "in a virtual machine: random strikes, its clock among what is struck", whole("vm-chaos", vmChaos)},
	{"vm-selinux", "in a virtual machine whose kernel has SELinux", func(t *tally) {
		virtualWith(t, vm.PrepareSELinux, "vm-selinux", vmSELinux, time.Hour)
	}},
	{"vm-oldest", "in a virtual machine with the oldest kernel that Berth runs on", func(t *tally) {
		virtualWith(t, vm.PrepareOldest, "vm-oldest", vmOldest, 2*time.Hour)
	}},
	{"vm-earlier", "in a virtual machine with the kernel of the release of Debian before", func(t *tally) {
		virtualWith(t, vm.PrepareEarlier, "vm-earlier", vmEarlier, 2*time.Hour)
	}},
	{"conformance-smoke", "Kubernetes' node tests, a selection", func(t *tally) {
		conform(t, true, "-smoke")
		knowNames(t)
	}},
	{"conformance", "Kubernetes' node tests", func(t *tally) { conform(t, false, "-record=docs/conformance.md") }},
	{"soak", "crash matrix: every point, scenario and occurrence; random strikes with fresh seeds", func(t *tally) {
		_ = os.Setenv("BERTH_SOAK", "1")
		t.goTest("-count=1", "-timeout=0", "-tags=berth_fault", "-run=Crash", "./internal/image")
		t.goTest("-count=1", "-timeout=0", "./test/crash")
		strike(t, freshSeeds())
	}},
}

// usual are the sections of `make test`.
const usual = "vet format staticcheck unit compare cost demo e2e crash chaos"

var (
	race = flag.Bool("race", true, "run unit tests with the race detector")
	only = flag.String("run", "", "in a virtual machine, run the tests that match in place of those that the "+
		"section names")
)

func main() {
	flag.Parse()
	names := flag.Args()
	if len(names) == 0 {
		names = strings.Fields(usual)
	}
	os.Exit(runAll(names))
}

func runAll(names []string) int {
	chosen, err := choose(names)
	if err == nil && os.Geteuid() != 0 {
		err = fmt.Errorf("the tests make namespaces, mounts and cgroups: run them as root")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		return 2
	}
	node.Sweep()
	t := newTally(os.Stdout)
	before, err := hygiene.Machine()
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite: look at the machine:", err)
		return 2
	}
	for _, s := range chosen {
		t.section(s)
	}
	t.section(section{"hygiene", "the machine is as it was", func(t *tally) { checkMachine(t, before) }})
	return t.finish()
}

func choose(names []string) ([]section, error) {
	var chosen []section
	for _, name := range names {
		found := false
		for _, s := range sections {
			if s.name == name {
				chosen, found = append(chosen, s), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no section %q", name)
		}
	}
	return chosen, nil
}

func format(t *tally) {
	out, err := exec.Command("gofmt", "-l", ".").CombinedOutput()
	if files := strings.TrimSpace(string(out)); err != nil || files != "" {
		t.fail("gofmt", "not formatted: "+strings.ReplaceAll(files, "\n", " "))
		return
	}
	t.pass("gofmt")
}

func staticcheck(t *tally) {
	t.command("bin/tools/staticcheck", "./...")
	// The tag changes what this package has, and adds tests to two others.
	t.command("bin/tools/staticcheck", "-tags=berth_fault", "./internal/fault", "./internal/runtime", "./internal/image")
}

// comparisons chooses, or leaves out, the tests that have other tools unpack images. They work hard, and race with
// nobody.
func comparisons(flag string) string { return flag + "=^TestCompare" }

// costs are the tests of large data and large numbers, and those that bound memory and steps. Each works in one
// goroutine, or has smaller ones beside it that share as much. The race detector has a memory of its own, for which no
// bound leaves room, and would make them as slow as all others together.
const costs = "^(TestAttacks|TestGrowth|TestHostileDocuments|TestManifestOfManyReplaced|TestManyReplaced|" +
	"TestRandomLayers|TestTarComesBack|TestLargeLayerNeedsNoMemory|TestImportRefuses|" +
	"TestImportKeepsNoDocuments|TestConfigBounds|TestConfinement|TestConfinementFromOutside|" +
	"TestConfinementKills|TestSame|TestCuts|TestGreedyClients|TestTenThousandFiles|TestTenThousandNames)$"

func checkMachine(t *tally, before hygiene.Snapshot) {
	if hygiene.SharedMachine() {
		t.skip("machine", "BERTH_SHARED_MACHINE says that others use this machine at the same time")
		return
	}
	leaks, err := hygiene.Check(before, hygiene.Machine, hygiene.Everything, 10*time.Second)
	if err != nil {
		t.fail("machine", err.Error())
	}
	for _, l := range leaks {
		t.fail("machine", l.String())
	}
	if err == nil && len(leaks) == 0 {
		t.pass("machine")
	}
}
