package pod

import (
	"testing"

	"berth/internal/sandbox"
)

// unmount takes away what is mounted for a pod, as a boot does.
func (b *bench) unmount(t *testing.T, pod sandbox.ID) {
	t.Helper()
	l := &b.cfg.Layout
	for _, path := range []string{l.NetNSPin(pod), l.IPCNSPin(pod), l.UTSNSPin(pod), l.Shm(pod),
		sandbox.EtcMount(l, pod)} {
		unmountForTest(t, path)
	}
}
