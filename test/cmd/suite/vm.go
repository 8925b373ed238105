package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"berth/test/installed"
	"berth/test/vm"
)

// vmUsual is what `make test-vm` runs, and vmAll what `make test-vm-all` does.
var (
	vmUsual = []vm.Test{
		{Package: "internal/cgroup"}, {Package: "internal/systemd"},
		{Package: "test/e2e", Env: []string{"BERTH_TEST_RUNTIME=crun"}},
	}
	vmAll = []vm.Test{
		{Package: "internal/cgroup"}, {Package: "internal/systemd"}, {Package: "internal/host"}, {Package: "internal/helper"}, {Package: "internal/monitor"},
		{Package: "internal/runtime"}, {Package: "internal/network"}, {Package: "internal/rootfs"}, {Package: "internal/pod"},
		{Package: "test/e2e"},
		// The other cgroup driver, where it is not the obvious one.
		{Package: "test/e2e", Run: cgroupTests, Env: []string{"BERTH_TEST_CGROUP=cgroupfs", "BERTH_TEST_RUNTIME=crun"}},
	}
)

// cgroupTests are the tests in which the cgroup driver makes a difference.
const cgroupTests = "Cgroup|Resources|OutOfMemory|Exec|Stop|Monitor|Daemon|RuntimeConfig"

// vmNode is what takes a machine whose service and power are the tests' own. The package is removed by the last of each.
var vmNode = []vm.Test{
	{Package: "test/power", Run: "TestStart", Until: "power: cut it now", Env: []string{installed.Env}},
	{Package: "test/power", Run: "TestAfter", Env: []string{installed.Env}},
	{Package: "test/service", Run: "TestInstall|TestPodsOutliveTheDaemon|TestShutdown", Down: true, Env: []string{installed.Env}},
	{Package: "test/service", Run: "TestBooted|TestRemove", Env: []string{installed.Env}},
}

// ownNode makes the package, and tests what becomes of a node that installs it.
func ownNode(t *tally) {
	before := t.failed
	if t.command("packaging/deb"); t.failed == before {
		virtual(t, vmNode)
	}
}

// vmOutput holds what the tests in the machine say, line by line, while they run.
const vmOutput = "bin/vm.log"

// vmTimeout is how long all tests in a virtual machine may take.
const vmTimeout = 80 * time.Minute

func virtual(t *tally, tests []vm.Test) {
	img, err := vm.Prepare(func(what string) { _, _ = fmt.Fprintln(t.out, what) })
	if err != nil {
		t.fail("virtual machine", err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), vmTimeout)
	defer cancel()
	r, w := io.Pipe()
	read := make(chan struct{})
	go func() {
		defer close(read)
		t.read(r)
	}()
	_, _ = fmt.Fprintln(t.out, "what the machine says as it runs: "+vmOutput)
	err = vm.Run(ctx, img, tests, vmOutput, w)
	_ = w.Close()
	<-read
	if err != nil {
		t.fail("virtual machine", err.Error())
	}
}
