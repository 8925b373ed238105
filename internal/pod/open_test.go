package pod

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/record"
)

// TestOpenTidiesRecords has a daemon be killed in the write of a record and in the flush of one: the next one removes
// what these have left, and nothing else. What is beside a record that cannot be read stays, for whoever mends it.
func TestOpenTidiesRecords(t *testing.T) {
	b := open(t)
	pod, _ := started(t, b)
	other, err := b.Run(t.Context(), podConfig("b"), "")
	if err != nil {
		t.Fatal(err)
	}
	b.end(t)
	inPod, inOther := []string{}, ""
	for _, name := range []string{"record-4711-1", "record-4711-2", "synced-record"} {
		inPod = append(inPod, filepath.Join(b.cfg.Pod(pod), record.TempPrefix+name))
		inOther = filepath.Join(b.cfg.Pod(other), record.TempPrefix+name)
		err = errors.Join(err, os.WriteFile(inPod[len(inPod)-1], []byte("berth-record"), 0o600),
			os.WriteFile(inOther, []byte("berth-record"), 0o600))
	}
	synced := filepath.Join(b.cfg.Pod(pod), ".synced-record")
	err = errors.Join(err, os.WriteFile(synced, nil, 0o600), os.WriteFile(b.cfg.Record(other), []byte("?"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	for _, path := range inPod {
		if there(path) {
			t.Errorf("%s is left", path)
		}
	}
	for _, path := range []string{synced, b.cfg.Record(pod), identityPath(&b.cfg, pod), inOther} {
		if !there(path) {
			t.Errorf("%s is gone", path)
		}
	}
	if r, err := b.Catalog.Get(pod); err != nil || len(r.Containers) != 1 {
		t.Errorf("the pod is %+v, %v", r, err)
	}
}
