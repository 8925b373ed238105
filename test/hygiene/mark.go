package hygiene

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"
)

// mark is a variable in the environment of every process that a run of tests starts, with the run's own value. By it a
// process that was left behind is told from one of somebody else who uses the machine: a shell, an editor, another run.
const mark = "BERTH_TEST_RUN"

// Whoever starts tests first, the suite or a test binary, marks itself, and what it starts inherits the mark.
func init() {
	if os.Getenv(mark) == "" {
		_ = os.Setenv(mark, fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()))
	}
}

// named matches what bears Berth's name, or one that tests give: of processes that were given another environment, as
// monitors and containers are, and of cgroups.
var named = regexp.MustCompile(`berth|\bbt-`)

// ofTests says whether a process belongs to this run of tests, or to nobody's and bears Berth's name.
func ofTests(pid int, p process) bool {
	switch runOf(pid) {
	case os.Getenv(mark):
		return true
	case "":
		return named.MatchString(p.detail)
	}
	return false // of another run, which looks after itself
}

// runOf is the run of tests that a process descends from, "" where its environment does not say.
func runOf(pid int) string {
	environment, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	for variable := range bytes.SplitSeq(environment, []byte{0}) {
		if value, ok := bytes.CutPrefix(variable, []byte(mark+"=")); ok {
			return string(value)
		}
	}
	return ""
}
