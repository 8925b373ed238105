package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/conformance"
	"berth/test/fixture"
	"berth/test/installed"
	"berth/test/node"
	"berth/test/vm"
)

// vmUsual is what `make test-vm` runs in the first machine: in about twenty minutes on an emulated processor, so not
// all. It is what the development machine cannot show, since that has no systemd, no cgroup v2 and no AppArmor: the
// packages that speak to them, and of the tests end to end those in which they take part (vmSubset). The rest
// runs here with `make test-vm-all`: what asks nothing of the machine that `make test` does not give it, the other
// cgroup driver on cgroup v2, ReadOnlyDisk, and what a monitor takes of a kernel that gives huge pages to everybody.
var vmUsual = []vm.Test{
	{Package: "internal/cgroup", Env: []string{installed.Env}},
	{Package: "internal/systemd"}, {Package: "internal/apparmor"},
	// Quotas of projects.
	{Package: "internal/rootfs", Run: "^Test.*(Project|Quota)"}, {Package: "internal/pod", Run: "^TestQuota"},
	{Package: "test/e2e", Run: pattern(vmSubset), Env: []string{"BERTH_TEST_RUNTIME=crun"}, Flags: atOnce},
	// Of a container of runc's, systemd writes the very files that limit it; crun makes a group below those.
	{Package: "test/e2e", Run: pattern([]string{"UpdateContainerResources", "UpdatesAreExact"}),
		Env: []string{"BERTH_TEST_RUNTIME=runc"}, Flags: atOnce},
}

// What `make test-vm-all` runs, each in a machine of its own: every test with both runtimes, those that go by the
// cgroup driver with the other one, too, and a selection of the crash matrix.
var (
	vmPackages = []vm.Test{
		{Package: "internal/cgroup", Env: []string{installed.Env}}, {Package: "internal/systemd"}, {Package: "internal/host"},
		{Package: "internal/helper"}, {Package: "internal/monitor"},
		{Package: "internal/runtime"}, {Package: "internal/network"}, {Package: "internal/rootfs"}, {Package: "internal/pod"},
	}
	vmCrun     = []vm.Test{{Package: "test/e2e", Env: []string{"BERTH_TEST_RUNTIME=crun"}, Flags: atOnce}}
	vmRunc     = []vm.Test{{Package: "test/e2e", Env: []string{"BERTH_TEST_RUNTIME=runc"}, Flags: atOnce}}
	vmCgroupfs = []vm.Test{
		{Package: "test/e2e", Run: pattern(slices.Concat(vmSubset, vmKernel)), Env: []string{"BERTH_TEST_CGROUP=cgroupfs"},
			Flags: atOnce}}
	vmChaos = []vm.Test{
		{Package: "test/chaos", Run: "^TestMachine$", Env: []string{"BERTH_TEST_CHAOS='crun 50 11'"}},
		{Package: "test/chaos", Run: "^TestMachine$", Env: []string{"BERTH_TEST_CHAOS='runc 50 12'"}},
	}
	vmCrash = []vm.Test{{Package: "test/crash", Run: crashes, Env: []string{"BERTH_TEST_RUNTIME=crun"}, Flags: atOnce}}
)

// vmSubset are the tests end to end in which systemd, cgroup v2, AppArmor or the kernel of the machine take part.
var vmSubset = []string{
	// The cgroup of a container, of a pod and of the monitors: what is in their files, who makes them, who ends them.
	"Units", "UnifiedResources", "WeightAndSwap", "Resources", "UpdateContainerResources", "UpdatesAreExact",
	"LimitBelowTheCache", "ResourcesOutliveTheDaemon",
	"CgroupParent.*", "Devices",
	"CgroupWritable", "CgroupNames.*", "ContainerNestsCgroups", "FrozenContainer", "PrivilegedKeeps.*",
	"OutOfMemory.*", "ExecTimeout", "StopKillsTheWholeContainer", "PodAfterTheMonitorsScopeWasStopped", "SystemdRestarts",
	// What is read from them.
	"StatsOfProcessorTime", "StatsOfMemory", "StatsOfPressure", "StatsOfPods", "Metrics", "RuntimeConfig",
	// What survives whom, where systemd has a say.
	"DaemonKilled", "ExitWithoutDaemon", "MonitorKilled",
	"AppArmor.*",
	// Quotas of projects, which the kernel of the machine has for ext4 and XFS.
	"Storage.*", "FilesKeepTheirProject.*",
}

// vmKernel are those that ask something of the kernel of the machine, and nothing of systemd: id-mapped mounts on every
// file system, an ext4 that shuts itself down. `make test-vm-all` runs them with both runtimes and both cgroup drivers.
var vmKernel = []string{"I386Image", "Security", "Namespaces", "Userns", "Sandbox", "ReadOnlyDisk"}

// crashes are the points of the crash matrix at which systemd holds something of a pod.
const crashes = "TestMatrix/(life|shared-pid|recover-run|recover-stop)/pod.(cgroup|monitor|init)|" +
	"TestMatrix/.*/container.process"

// atOnce is how many tests run at once: more would wait for each other, past their patience, where the processor is
// emulated.
var atOnce = []string{"-test.parallel=6"}

// pattern matches exactly the tests of these names.
func pattern(names []string) string { return "^Test(" + strings.Join(names, "|") + ")$" }

// vmNode is what takes a machine whose service and power are the tests' own. The package is removed by the last of
// each.
var vmNode = []vm.Test{
	{Package: "test/power", Run: "TestStart", Until: "power: cut it now", Env: []string{installed.Env}},
	{Package: "test/power", Run: "TestAfter", Env: []string{installed.Env}},
	{Package: "test/service", Run: "TestInstall|TestHelpersOutliveTheDaemon|TestPodsOutliveTheDaemon|TestShutdown",
		Down: true, Env: []string{installed.Env}},
	{Package: "test/service", Run: "TestBooted", Env: []string{installed.Env}},
	{Package: "test/service", Run: "TestRemove", Env: []string{installed.Env}},
	// On a node that the package was removed from.
	{Package: "test/service", Run: "TestQuickStart", Env: []string{installed.Env}},
}

// vmMove is a node with a kubelet, which moves from containerd to Berth and back.
func vmMove() []vm.Test {
	files := map[string]string{"move/kubelet": filepath.Join(conformance.ProgramsCache(), "kubelet")}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		files["move/"+name] = filepath.Join(fixture.Repo(), "bench/.peers/bin", name)
	}
	return []vm.Test{{
		Package: "test/service", Run: "^TestMoveFromContainerd$", Files: files,
		Env: []string{installed.Env, "BERTH_TEST_MOVE_PROGRAMS=/payload/move"},
	}}
}

// moveNode makes the package, builds containerd and the kubelet unless they are there, and has the node move.
func moveNode(t *tally) {
	before := t.failed
	t.command("packaging/deb")
	t.command("bench/setup")
	if err := conformance.BuildPrograms(t.out); err != nil {
		t.fail("kubelet", err.Error())
	}
	if t.failed == before {
		virtual(t, "vm-move", vmMove(), time.Hour)
	}
}

// vmConformance is a node with the package and with what Kubernetes' node tests take.
func vmConformance(runtime string) vm.Test {
	const cache, results = "cache/berth-test", "conformance-results/vm-"
	return vm.Test{
		Package: "test/conformance", Run: "^TestMachine$", Results: results + runtime,
		Files: map[string]string{
			"applets": conformance.AppletsProgram(),
			filepath.Join(cache, filepath.Base(conformance.ProgramsCache())): conformance.ProgramsCache(),
			filepath.Join(cache, filepath.Base(fixture.DebianCache())):       fixture.DebianCache(),
		},
		Env: []string{
			installed.Env, "BERTH_TEST_RUNTIME=" + runtime, conformance.ResultsVariable + "=/payload/" + results + runtime,
			conformance.AppletsVariable + "=/payload/applets", "XDG_CACHE_HOME=/payload/cache",
			onDisk,
		},
	}
}

// conformNode makes the package, builds what the node tests take unless it is there, and runs them on a node with it.
// One runtime is enough: the tests of this repository run with both there.
func conformNode(t *tally) {
	before := t.failed
	t.command("packaging/deb")
	if err := errors.Join(conformance.BuildPrograms(t.out), conformance.Prepare(t.out)); err != nil {
		t.fail("what the node tests take", err.Error())
	}
	runtime := os.Getenv("BERTH_TEST_RUNTIME")
	if runtime == "" {
		runtime = node.Crun
	}
	if t.failed == before {
		virtual(t, "vm-conformance", []vm.Test{vmConformance(runtime)}, time.Hour)
	}
}

// vmSELinux runs where the kernel has SELinux: with a policy that only tells when it is broken, and with one to which
// containers are held.
var vmSELinux = []vm.Test{
	{Package: "internal/selinux"},
	{Package: "test/e2e", Run: pattern(selinuxSubset), Flags: atOnce},
	{Package: "test/e2e", Run: "^TestSELinux", Env: []string{"BERTH_TEST_SELINUX_ENFORCING=1"}, Flags: atOnce},
}

// vmOldest runs where the kernel is Linux 5.10: the packages that go by what a kernel can, and every test end to end
// with one of the runtimes, but those of what came later (oldestLacks).
var vmOldest = []vm.Test{
	{Package: "internal/cgroup"}, {Package: "internal/host"}, {Package: "internal/rootfs", Run: "^TestOneByOne$"},
	{Package: "test/e2e", Skip: pattern(oldestLacks), Env: []string{"BERTH_TEST_RUNTIME=crun"}, Flags: atOnce},
}

// oldestLacks are the tests that have a part in which a kernel is asked for what Linux 5.10 has not.
var oldestLacks = []string{
	// User namespaces, whose roots take id-mapped overlays (5.19).
	"Userns.*", "BadUserns", "HandlerFeatures", "UnreadableRecordKeepsThePod", "DeviceOwnership", "CgroupWritable",
	"WhatTheDaemonIsGiven",
	"VolumesLeaveMountsAlone.*", "ImageChoosesNoPathOfTheHost", "PodGoesDuringHostileCreate", "VolumeUnderReadOnlyRoot",
	"PodFilesAreBounded", "UnprivilegedNetwork", "VolumeIsAFile", "DirectoryBehindALink",
	"PrivilegedEphemeralContainerInUserns",
	// Mounts that are changed with what is below them (5.12).
	"RecursiveReadOnly", "MappedVolumeWithoutUserns",
	"AppArmorWithoutSignals",                    // the kill of a cgroup, which no profile refuses (5.14)
	"AnswersAreFilled",                          // pressure, which this kernel does not tell unless it is asked at boot
	"Metrics",                                   // the highest memory of a cgroup v2 (5.19)
	"MonitorThatHangs",                          // the exit codes of those whose monitor was killed (6.15)
	"StorageLimit.*", "FilesKeepTheirProject.*", // quotas of projects that a descriptor names (5.14)
}

// vmEarlier runs where the kernel is Linux 6.1, which most nodes with Debian 12 have.
var vmEarlier = []vm.Test{
	{Package: "internal/cgroup"}, {Package: "internal/host"}, {Package: "internal/rootfs", Env: []string{onDisk}},
	{Package: "test/e2e", Skip: pattern(earlierLacks), Env: []string{"BERTH_TEST_RUNTIME=crun", onDisk}, Flags: atOnce},
}

// earlierLacks are the same where the kernel is Linux 6.1.
var earlierLacks = []string{
	"AnswersAreFilled", "MonitorThatHangs", // for the reasons above
}

// onDisk has tests make their files on the disk, as on a node: /tmp is a tmpfs in the machine, of which Linux maps no
// ids before 6.3.
const onDisk = "TMPDIR=/var/tmp"

// selinuxSubset are the tests end to end in which SELinux takes part, and a few of all else.
var selinuxSubset = []string{"SELinux.*", "PodLife", "ExecSync", "ImageVolume"}

// ownNode makes the package, and tests what becomes of a node that installs it.
func ownNode(t *tally) {
	before := t.failed
	if t.command("packaging/deb"); t.failed == before {
		virtual(t, "vm-node", vmNode, time.Hour)
	}
}

// chosen are the tests that match, in one boot: of a package that has its tests in several, each once.
func chosen(tests []vm.Test, match string) (one []vm.Test) {
	for _, t := range tests {
		if t.Until != "" {
			continue // a power cut ends it
		}
		t.Run, t.Down = match, false
		same := func(other vm.Test) bool { return other.Package == t.Package && slices.Equal(other.Env, t.Env) }
		if !slices.ContainsFunc(one, same) {
			one = append(one, t)
		}
	}
	return one
}

// whole runs tests that are not in a hurry.
func whole(name string, tests []vm.Test) func(*tally) {
	return func(t *tally) { virtual(t, name, tests, 3*time.Hour) }
}

// virtual runs tests in a virtual machine, which may take so long at most once there is an image to boot from. What
// they say goes to bin/<name>.log, line by line, while they run.
func virtual(t *tally, name string, tests []vm.Test, within time.Duration) {
	virtualWith(t, vm.Prepare, name, tests, within)
}

func virtualWith(t *tally, prepare func(say func(string)) (vm.Image, error), name string, tests []vm.Test,
	within time.Duration) {
	if *only != "" {
		tests = chosen(tests, *only)
	}
	output := "bin/" + name + ".log"
	img, err := prepare(func(what string) { _, _ = fmt.Fprintln(t.out, what) })
	if err != nil {
		t.fail("virtual machine", err.Error())
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), within, fmt.Errorf("the tests in it were not done "+
		"after %s", within))
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT) // so that the machine goes with us
	defer stop()
	r, w := io.Pipe()
	read := make(chan struct{})
	go func() {
		defer close(read)
		t.read(r)
	}()
	_, _ = fmt.Fprintln(t.out, "what the machine says as it runs: "+output)
	err = vm.Run(ctx, img, tests, output, w)
	_ = w.Close()
	<-read
	if err != nil {
		t.fail("virtual machine", err.Error())
	}
}
