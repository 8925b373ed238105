package e2e

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// takeOut has a probe try to take /srv out of its project, and returns what the kernel answered, by the call.
func (p *pod) takeOut(name, arch string, edits ...edit) map[string]string {
	p.Helper()
	edits = append(edits, func(c *v1.ContainerConfig) {
		c.Command = []string{"sh", "-c", "mkdir /srv && /probe-" + arch + " project /srv"}
	})
	answers := map[string]string{}
	for line := range strings.Lines(p.output(probe(name, arch, "", edits...))) {
		call, answer, _ := strings.Cut(strings.TrimSpace(line), " ")
		answers[call] = answer
	}
	return answers
}

// TestFilesKeepTheirProject has the default filter refuse what takes files out of the project of their container, in
// 64 and 32 bits, and with bits in the request at which the kernel does not look; and nothing else of ioctl. A
// container without a filter shows that the kernel would do it.
func TestFilesKeepTheirProject(t *testing.T) {
	each(t, func(r rig) {
		r.withProbes()
		p := r.pod()
		for _, arch := range fixture.ProbeArchitectures() {
			free := p.takeOut("free-"+arch, arch, seccomp(v1.SecurityProfile_Unconfined, ""))
			filtered := p.takeOut("filtered-"+arch, arch, seccomp(v1.SecurityProfile_RuntimeDefault, ""))
			if len(free) < 9 || len(free) != len(filtered) {
				r.Errorf("%s: the probes say %v and %v", arch, free, filtered)
			}
			refused := 0
			for call, answer := range filtered {
				switch {
				case call == "file_setattr" && free[call] == "ENOSYS": // the kernel has it not
				case call == "file_setattr" || strings.HasPrefix(call, "FS_IOC_FSSETXATTR"):
					if free[call] != "ok" || !slices.Contains([]string{"EPERM", "ENOSYS"}, answer) {
						r.Errorf("%s: %s is answered with %s, without a filter with %s", arch, call, answer, free[call])
					}
					refused++
				case call == "file_getattr" || strings.HasPrefix(call, "FS_IOC_SETFLAGS"):
				case answer != free[call]:
					r.Errorf("%s: %s is answered with %s, without a filter with %s", arch, call, answer, free[call])
				}
			}
			if refused == 0 {
				r.Errorf("%s: nothing was tried", arch)
			}
		}
	})
}

// TestFilesKeepTheirProjectWhereCounted has it refuse as well, on a file system that counts projects, what keeps a
// directory from handing its project down.
func TestFilesKeepTheirProjectWhereCounted(t *testing.T) {
	eachQuota(t, node.Options{}, func(s *small) {
		s.withProbes()
		p := s.pod()
		for _, arch := range fixture.ProbeArchitectures() {
			free := p.takeOut("free-"+arch, arch, seccomp(v1.SecurityProfile_Unconfined, ""))
			if free["project"] != "0x0 handed-down false" {
				s.Errorf("%s: without a filter the probe did not get out, so this shows nothing: %v", arch, free)
			}
			filtered := p.takeOut("filtered-"+arch, arch, seccomp(v1.SecurityProfile_RuntimeDefault, ""))
			if got := filtered["project"]; !strings.HasPrefix(got, "0xb") || !strings.HasSuffix(got, " true") {
				s.Errorf("%s: at the end the directory is of the project %s: %v", arch, got, filtered)
			}
			for call, answer := range filtered {
				sets := strings.HasPrefix(call, "FS_IOC_FSSETXATTR") || strings.HasPrefix(call, "FS_IOC_SETFLAGS")
				if sets && answer != "EPERM" || strings.HasPrefix(call, "FS_IOC_") && !sets && answer != "ok" {
					s.Errorf("%s: %s is answered with %s", arch, call, answer)
				}
			}
		}
	})
}
