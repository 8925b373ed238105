package e2e

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestHugepagesOfTheNode gives a container what a kubelet sends with every one: a limit of 0 for each size of the
// machine.
func TestHugepagesOfTheNode(t *testing.T) {
	sizes, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil || len(sizes) == 0 {
		t.Skipf("this kernel has no huge pages: %v", err)
	}
	var limits []*v1.HugepageLimit
	for _, path := range sizes {
		kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "hugepages-"), "kB"))
		if err != nil {
			t.Fatal(err)
		}
		size := strconv.Itoa(kb>>10) + "MB"
		if kb >= 1<<20 {
			size = strconv.Itoa(kb>>20) + "GB"
		}
		limits = append(limits, &v1.HugepageLimit{PageSize: size})
	}
	each(t, func(r rig) {
		st := r.pod().start(busybox("main", "exit 3", resources(func(l *v1.LinuxContainerResources) {
			l.HugepageLimits = limits
		}))).finish()
		if st.ExitCode != 3 {
			r.Errorf("exit code %d, %s", st.ExitCode, st.Message)
		}
	})
}
