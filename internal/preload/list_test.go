package preload

import (
	"slices"
	"strings"
	"testing"
)

func TestReadNames(t *testing.T) {
	const digest = "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	text := "\ufeff# images\r\nbusybox\r\n  quay.io/x/y:v1  # for later\n\n\t\nbusybox:latest\n#" +
		strings.Repeat("#", 100_000) + "\nr.example:5000/a/b" + digest + "\nquay.io/x/y#z\nno spaces here\n"
	names, wrong, err := readNames(strings.NewReader(text))
	want := []string{"docker.io/library/busybox:latest", "quay.io/x/y:v1", "r.example:5000/a/b" + digest}
	if !slices.Equal(names, want) || err != nil {
		t.Errorf("got %q, %v", names, err)
	}
	if wrong == nil || !strings.Contains(wrong.Error(), "line 9: ") || !strings.Contains(wrong.Error(), "line 10: ") {
		t.Errorf("of wrong lines it says %v", wrong)
	}
	if names, wrong, err := readNames(strings.NewReader("")); len(names) != 0 || wrong != nil || err != nil {
		t.Errorf("of nothing: %q, %v, %v", names, wrong, err)
	}
}
