package rules

import (
	"debug/elf"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/node"
)

// byName are what calls methods by names that are known only as the program runs. Where one of them is linked, every
// method of every type that becomes an interface is, too: see docs/adr/0077.
var byName = []string{"text/template.(*state).", "html/template.(*Template).Execute", "godbus/dbus/v5.getMethods"}

// TestLinkerDropsMethods wants nothing in the daemon that keeps methods which nobody calls.
func TestLinkerDropsMethods(t *testing.T) {
	bin, err := node.Binaries(false)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(filepath.Join(bin, "berth"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		for _, name := range byName {
			if strings.Contains(s.Name, name) {
				t.Errorf("it has %s", s.Name)
			}
		}
	}
}
