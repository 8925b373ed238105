package timeouts

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int{"": 1, "10": 10, "1": 1, "0": 1, "-3": 1, "long": 1, "1.5": 1} {
		if got := parse(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestFor asks another process of this program, which has the variable in its environment.
func TestFor(t *testing.T) {
	if os.Getenv("BERTH_TEST_ASKED") != "" {
		t.Log(For(3 * time.Second))
		return
	}
	for value, want := range map[string]string{"": "3s", "20": "1m0s"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFor$", "-test.v")
		cmd.Env = append(os.Environ(), "BERTH_TEST_ASKED=1", Variable+"="+value)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), ": "+want+"\n") {
			t.Errorf("with %q: %v, want %s:\n%s", value, err, want, out)
		}
	}
}
