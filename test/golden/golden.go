// Package golden compares what a test has made with what it should have made: a text with a file of the repository,
// which -update writes anew, or a tree of files with another.
package golden

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// File wants the file at path, relative to the test's package, to be what was made.
func File(t *testing.T, path, made string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if made != string(want) {
		t.Errorf("%s differs: look at what changed, and run the test with -update if it is meant; it would be\n%s",
			path, made)
	}
}
