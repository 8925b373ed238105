package footprint

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Descendants are the processes that a process has started and that still live, with those that they have started.
func Descendants(pid int) (all []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		data, _ := os.ReadFile(task) // a thread may end at any time
		for field := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), Descendants(child)...)
			}
		}
	}
	return all
}

// OccupiedWithBelow is what a process and all that it has started occupy together, in bytes. A page that several of
// them map counts once.
func OccupiedWithBelow(pid int) (sum int64) {
	for _, one := range append(Descendants(pid), pid) {
		if m, err := Occupied(one); err == nil { // another has ended meanwhile
			sum += m.PSS
		}
	}
	return sum
}

// ResidentBelow is the resident memory in bytes of all that a process has started and that still lives.
func ResidentBelow(pid int) (sum int64) {
	for _, child := range Descendants(pid) {
		if r, err := ResidentOf(child); err == nil { // another has ended meanwhile
			sum += r.Now
		}
	}
	return sum
}
