package e2e

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// processesIn finds the processes with the words in their command line, in a cgroup whose path names group.
func processesIn(group, words string) []int {
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		groups, _ := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		line := strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))
		if strings.Contains(line, words) && strings.Contains(string(groups), group) {
			found = append(found, pid)
		}
	}
	return found
}

func countProcesses(words, group string) int { return len(processesIn(group, words)) }

// killProcess kills a process that processesIn found, by its id. One that has just ended is no error.
func killProcess(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != syscall.ESRCH {
		return err
	}
	return nil
}
