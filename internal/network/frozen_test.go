package network

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testdata/frozen/network-v1 was written by the first release and is never changed: whatever comes after reads it.
func TestFrozenAttachment(t *testing.T) {
	var a attachment
	if v, err := kind.Read("testdata/frozen/network-v1", &a); err != nil || v != 1 {
		t.Fatalf("version %d, %v", v, err)
	}
	if a.Pod != strings.Repeat("3f", 32) || a.NetNS != "/run/netns/berth-"+a.Pod || len(a.Networks) != 1 {
		t.Fatalf("got %+v", a)
	}
	n := a.Networks[0]
	if n.IfName != "eth0" || len(n.Args) != 1 || n.Args[0] != [2]string{"K8S_POD_NAME", "web"} ||
		!strings.Contains(string(n.Capabilities["portMappings"]), "8080") ||
		!strings.Contains(string(n.Result), "10.88.0.7/16") {
		t.Errorf("network: %+v", n)
	}
	again, err := json.Marshal(a)
	if err != nil || !strings.Contains(string(again), `"bridge"`) {
		t.Errorf("the configuration that made it is lost: %s, %v", again, err)
	}
}

// TestCacheIsTidied has a crash leave half of a removal, and tells the flusher a record from a directory.
func TestCacheIsTidied(t *testing.T) {
	var dirs, records []string
	dir := t.TempDir()
	c := cache{dir, func(p string) { dirs = append(dirs, p) }, func(p string) { records = append(records, p) }}
	kept := filepath.Join(dir, ".synced-kept")
	err := errors.Join(c.write(&attachment{Pod: "kept"}), c.write(&attachment{Pod: "gone"}), c.remove("gone"),
		os.WriteFile(kept, nil, 0o600), os.WriteFile(filepath.Join(dir, ".synced-gone"), nil, 0o600), c.open())
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != filepath.Base(kept) || left[1].Name() != "kept" {
		t.Errorf("left: %v, %v", left, err)
	}
	if want := []string{filepath.Join(dir, "kept"), filepath.Join(dir, "gone")}; !slices.Equal(dirs, []string{dir}) ||
		!slices.Equal(records, want) {
		t.Errorf("to be synced: %v, and the records %v", dirs, records)
	}
}

// TestFreeze writes it; it is for the day when the format changes, with a new name.
func TestFreeze(t *testing.T) {
	dir := os.Getenv("BERTH_FREEZE")
	if dir == "" {
		t.Skip("BERTH_FREEZE names no directory to write to")
	}
	id := strings.Repeat("3f", 32)
	conf, err := parse("10-berth.conflist",
		[]byte(`{"cniVersion":"1.0.0","name":"berth","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	a := attachment{Pod: id, NetNS: "/run/netns/berth-" + id, Networks: []attached{{
		Config: *conf, IfName: "eth0", Args: [][2]string{{"K8S_POD_NAME", "web"}},
		Capabilities: map[string]json.RawMessage{
			"portMappings": json.RawMessage(`[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`)},
		Result: json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.7/16"}]}`),
	}}}
	if err := kind.Write(dir+"/network-v1", a); err != nil {
		t.Fatal(err)
	}
}
