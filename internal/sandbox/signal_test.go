package sandbox

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestRequestedSignals(t *testing.T) {
	for s, want := range map[runtimeapi.Signal]int{
		0: 0, runtimeapi.Signal_SIGNAL_SIGABRT: 6, runtimeapi.Signal_SIGNAL_SIGCLD: 17, runtimeapi.Signal_SIGNAL_SIGINT: 2,
		runtimeapi.Signal_SIGNAL_SIGTERM: 15, runtimeapi.Signal_SIGNAL_SIGXFSZ: 25, runtimeapi.Signal_SIGNAL_SIGRTMIN: 34,
		runtimeapi.Signal_SIGNAL_SIGRTMINPLUS15: 49, runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS14: 50,
		runtimeapi.Signal_SIGNAL_SIGRTMAX: 64,
	} {
		got, err := RequestedSignal(s)
		if err != nil || got != want {
			t.Errorf("%v: %d, %v, want %d", s, got, err, want)
		}
		if s != runtimeapi.Signal_SIGNAL_SIGCLD && CRISignal(got) != s {
			t.Errorf("%v comes back as %v", s, CRISignal(got))
		}
	}
	if _, err := RequestedSignal(66); err == nil {
		t.Error("66 is taken for a signal")
	}
}

func TestStopSignals(t *testing.T) {
	for name, want := range map[string]int{"": 15, "SIGQUIT": 3, "quit": 3, "9": 9, "SIGRTMIN+3": 37, "RTMAX-1": 63,
		"SIGRTMIN": 34} {
		if got, err := StopSignal(name); err != nil || got != want {
			t.Errorf("%q: %d, %v", name, got, err)
		}
	}
	for _, name := range []string{"SIGNOTHING", "0", "99", "RTMIN+99"} {
		if got, err := StopSignal(name); err == nil {
			t.Errorf("%q is taken for %d", name, got)
		}
	}
}
