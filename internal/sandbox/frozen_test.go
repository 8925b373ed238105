package sandbox

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

// testdata/record-v1 was written by the first release and is never changed: whatever comes after reads it.
func TestFrozenRecord(t *testing.T) {
	r := &Record{}
	if v, err := RecordKind.Read("testdata/record-v1", r); err != nil || v != 1 {
		t.Fatalf("version %d, %v", v, err)
	}
	at := time.Date(2026, 11, 21, 12, 0, 0, 123456789, time.UTC)
	switch cfg := r.Config.Get(); {
	case r.State != Ready, r.Runtime != "runc", r.Boot != "0e3b2f7c-8a5d-4b1e-9c6f-2d7a1b3c4d5e", !r.CreatedAt.Equal(at):
		t.Errorf("pod: %+v", r)
	case len(r.IPs) != 2 || r.IPs[0].String() != "10.244.1.7" || r.IPs[1].String() != "fd00::7":
		t.Errorf("addresses: %v", r.IPs)
	case cfg.Metadata.Name != "web", cfg.Metadata.Attempt != 1, cfg.PortMappings[0].HostPort != 8080,
		cfg.DnsConfig.Options[0] != "ndots:5",
		cfg.Linux.CgroupParent != "/kubepods/burstable/pod8c5f3a52", SharedPID(cfg):
		t.Errorf("configuration: %v", cfg)
	case len(r.Containers) != 2:
		t.Fatalf("%d containers", len(r.Containers))
	}
	c := r.Containers[0]
	if c.State != Exited || c.ExitCode != 137 || c.Reason != ReasonOOM || !c.FinishedAt.Equal(at.Add(2*time.Second)) ||
		c.StopSignal != 3 ||
		c.Process.PID != 4711 || c.Process.StartTime != 123456 || c.User.UID != 33 || c.User.AdditionalGids[1] != 1000 ||
		len(c.Layers) != 2 {
		t.Errorf("first container: %+v", c)
	}
	if c = r.Containers[1]; c.State != Running || c.Stuck == nil || c.Stuck.Tries != 2 ||
		c.Config.Get().Linux.Resources.MemoryLimitInBytes != 64<<20 {
		t.Errorf("second container: %+v", c)
	}
}

// What is written again is what was read, also the configuration, whose JSON form is kept.
func TestRecordSurvivesRewriting(t *testing.T) {
	r, again := &Record{}, &Record{}
	if _, err := RecordKind.Read("testdata/record-v1", r); err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/record"
	if err := RecordKind.Write(path, r); err != nil {
		t.Fatal(err)
	}
	if _, err := RecordKind.Read(path, again); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(r.Config.Get(), again.Config.Get()) || !proto.Equal(r.Containers[1].Config.Get(),
		again.Containers[1].Config.Get()) {
		t.Error("the configuration has changed")
	}
	if again.Containers[0].User.HomeDir != "/var/www" || again.Containers[1].Stuck.Error != r.Containers[1].Stuck.Error {
		t.Errorf("got %+v", again.Containers)
	}
}
