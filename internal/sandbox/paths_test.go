package sandbox

import (
	"path/filepath"
	"testing"
)

// TestWritableIsNotFarBelowRoot wants the path that an overlay is given to fit into the 255 bytes of fsconfig(2), where
// root is as long as internal/config allows (maxRoot).
func TestWritableIsNotFarBelowRoot(t *testing.T) {
	const maxRoot = 112
	upper := filepath.Join(Layout{}.Writable(NewID(), NewID()), "upper")
	if n := maxRoot + len("/"+upper); n != 255 {
		t.Errorf("the upper directory of a container is a path of %d bytes: change maxRoot of internal/config", n)
	}
}
