package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"berth/test/fixture"
)

// head is the first line of the table that Record adds to.
const head = "| date | build | Kubernetes | runtime | length | passed | known not to pass | differ |"

// Record puts an outcome into a page, as the first row of its table.
func Record(page, runtime string, o Outcome, took time.Duration) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	commit, err := exec.Command("git", "-C", fixture.Repo(), "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return fmt.Errorf("ask git for the commit: %w", err)
	}
	version, err := exec.Command(runtime, "--version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", runtime, err)
	}
	first, _, _ := strings.Cut(string(version), "\n")
	row := fmt.Sprintf("| %s | %s | %s | %s | %d min | %d | %d | %d |", time.Now().Format(time.DateOnly),
		strings.TrimSpace(string(commit)), strings.TrimPrefix(Version, "v"), strings.ReplaceAll(first, " version", ""),
		int(took.Minutes()+0.5), len(o.Passed), len(o.Known), len(o.Differences))
	added, err := addRow(string(text), row)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(added), 0o644)
}

// addRow puts a row below the head of the table.
func addRow(page, row string) (string, error) {
	lines := strings.Split(page, "\n")
	for i, line := range lines {
		if line == head && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|---") {
			return strings.Join(lines[:i+2], "\n") + "\n" + row + "\n" + strings.Join(lines[i+2:], "\n"), nil
		}
	}
	return "", fmt.Errorf("there is no table that begins with %q", head)
}
