package pod

import (
	"bytes"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
	"berth/internal/limit"
	"berth/internal/record"
	"berth/internal/sandbox"
)

// smallRecords lowers, for a test that opens its bench afterwards, what a record of a pod may have.
func smallRecords(t *testing.T) {
	t.Helper()
	was := limit.PodRecord.Limit
	if was+8<<20 > record.MaxSize {
		t.Errorf("a record of %d bytes leaves no room below %d", was, record.MaxSize)
	}
	t.Cleanup(func() { limit.PodRecord.Limit = was })
	limit.PodRecord.Limit = 64 << 10
}

// TestRecordStaysReadable asks for a container whose variables would make the record of its pod larger than a daemon
// reads. It is refused, and the pod runs on over a restart of the daemon.
func TestRecordStaysReadable(t *testing.T) {
	smallRecords(t)
	b := open(t)
	pod, ctr := started(t, b)
	large := containerConfig("large")
	large.Envs = []*runtimeapi.KeyValue{{Key: "LARGE", Value: bytes.Repeat([]byte("x"), 64<<10)}}
	_, err := b.Create(t.Context(), pod, large)
	if !errdefs.IsResourceExhausted(err) || fail.Details(err).Limit != limit.PodRecord.Name {
		t.Errorf("a container of 64 KiB: %v", err)
	}
	if _, err := b.Create(t.Context(), pod, containerConfig("small")); err != nil {
		t.Error(err)
	}
	p, err := b.Catalog.find(pod)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.record().Containers); n != 2 {
		t.Errorf("the pod has %d containers", n)
	}
	b.reopen(t)
	if r, err := b.Catalog.Get(pod); err != nil || r.State != sandbox.Ready || r.Container(ctr) == nil {
		t.Errorf("after a restart: %+v, %v", r, err)
	}
	if all := b.Problems(); len(all) > 0 {
		t.Errorf("problems: %v", all)
	}
}

// TestWhatHappenedIsWritten writes that a container has ended also where the record is larger than what may be asked
// for: a limit keeps no pod from being stopped.
func TestWhatHappenedIsWritten(t *testing.T) {
	smallRecords(t)
	b := open(t)
	pod, ctr := started(t, b)
	p, err := b.Catalog.find(pod)
	if err == nil {
		err = p.publish("test", func(r *sandbox.Record) error {
			return r.Edit(ctr, func(c *sandbox.Container) error {
				c.Message = string(bytes.Repeat([]byte("x"), int(limit.PodRecord.Limit)))
				return nil
			})
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(t.Context(), pod, containerConfig("more")); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one more container: %v", err)
	}
	if err := b.StopContainer(t.Context(), ctr, 0); err != nil {
		t.Error(err)
	}
	wait(t, "the last write", func() bool { return !writes(&p.ledger) })
	if r, err := readRecord(&b.cfg, pod, false); err != nil || r.Container(ctr).State != sandbox.Exited {
		t.Errorf("on the disk: %v", err)
	}
}
