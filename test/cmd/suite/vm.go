package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"berth/test/vm"
)

// vmUsual is what `make test-vm` runs, and vmAll what `make test-vm-all` does.
var (
	vmUsual = []vm.Test{
		{Package: "internal/cgroup"},
		{Package: "test/e2e", Env: []string{"BERTH_TEST_RUNTIME=crun"}},
	}
	vmAll = []vm.Test{
		{Package: "internal/cgroup"}, {Package: "internal/host"}, {Package: "internal/helper"}, {Package: "internal/monitor"},
		{Package: "internal/runtime"}, {Package: "internal/network"}, {Package: "internal/rootfs"}, {Package: "internal/pod"},
		{Package: "test/e2e"},
	}
)

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
	err = vm.Run(ctx, img, tests, w)
	_ = w.Close()
	<-read
	if err != nil {
		t.fail("virtual machine", err.Error())
	}
}
