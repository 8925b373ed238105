package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth/test/node"
	"berth/test/timeouts"
	"berth/test/vm"
)

// The line after all that the machine says of the suite, and the exit code.
const done = "#### done "

// inMachine boots the virtual machine and has this program run the suite in it.
func inMachine(suite string, _ []string) (err error) {
	img, err := vm.Prepare(func(what string) { fmt.Println(what) })
	if err != nil {
		return err
	}
	payload, err := os.MkdirTemp("", "bt-critest-vm-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(payload)) }()
	if err := gather(payload, suite); err != nil {
		return err
	}
	m, err := vm.New(img, payload)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return follow(m)
}

// gather makes the second disk, with all that the suite takes and a script that starts it.
func gather(payload, suite string) error {
	bin, err := node.Binaries(false)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ginkgo, err := exec.LookPath("ginkgo")
	if err != nil {
		return err
	}
	var args []string
	flag.Visit(func(f *flag.Flag) {
		if f.Name != "vm" {
			args = append(args, fmt.Sprintf("'-%s=%s'", f.Name, f.Value))
		}
	})
	// The program of other tests' images, which cannot be built there, is in none of these.
	script := "#!/bin/sh\nexport HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin:/payload:/payload/tools " +
		"BERTH_BIN=/payload/bin " +
		"BERTH_TEST_WEBAPP=/payload/run-critest " +
		timeouts.Variable + "=20\n/payload/run-critest " + strings.Join(args, " ") + " /payload/critest " +
		strings.Join(flag.Args()[1:], " ") +
		" 2>&1\necho \"" + done + "$?\"\n"
	for from, to := range map[string]string{bin: "bin", self: "run-critest", suite: "critest", ginkgo: "ginkgo"} {
		if text, err := exec.Command("cp", "-rL", from, filepath.Join(payload, to)).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", from, err, text)
		}
	}
	return errors.Join(
		os.Mkdir(filepath.Join(payload, "tools"), 0o755),
		os.Symlink("../run-critest", filepath.Join(payload, "tools/ipcmk")), // neither is in the machine's image
		os.Symlink("../run-critest", filepath.Join(payload, "tools/sudo")),
		os.WriteFile(filepath.Join(payload, "run"), []byte(script), 0o755),
	)
}

// follow boots the machine and prints what it says.
func follow(m *vm.Machine) error {
	if err := m.Boot(); err != nil {
		return err
	}
	for {
		line, err := m.Next()
		if err != nil {
			if err == io.EOF {
				err = errors.New("the machine went off before the suite had ended")
			}
			return fmt.Errorf("%w; its console ends with:\n%s", err, m.Console(40))
		}
		if code, ended := strings.CutPrefix(line, done); ended {
			if code != "0" {
				return fmt.Errorf("the suite ended with %s", code)
			}
			return nil
		}
		fmt.Println(line)
	}
}
