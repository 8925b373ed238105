package e2e

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"berth/internal/cgroup"
	"berth/test/fixture"
	"berth/test/node"
	"berth/test/timeouts"
)

// valueCheck says whether a value of a field is as it should be.
type valueCheck = func(protoreflect.Value) bool

// answerSurvey collects which fields of CRI's answers a daemon fills, and checks their values.
type answerSurvey struct {
	rig
	all    map[string]protoreflect.FieldDescriptor
	checks map[string]valueCheck
	seen   map[string]bool
}

// take adds one answer. A field that a request has too is not looked at: it is what the caller sent.
func (a *answerSurvey) take(answer proto.Message) { a.walk(answer.ProtoReflect()) }

func (a *answerSurvey) walk(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := fixture.FieldName(f)
		if a.all[name] == nil {
			return true
		}
		a.seen[name] = true
		each := []protoreflect.Value{v}
		if f.IsList() {
			each = nil
			for i := range v.List().Len() {
				each = append(each, v.List().Get(i))
			}
		}
		for _, one := range each {
			if check := a.checks[name]; check != nil && !check(one) {
				a.Errorf("%s is %v", name, one)
			}
			if f.Message() != nil && !f.IsMap() {
				a.walk(one.Message())
			}
		}
		return true
	})
}

// missing are the fields that should have been filled and were not.
func (a *answerSurvey) missing(kept map[string]string) []string {
	var names []string
	for name := range a.all {
		if kept[name] == "" && !a.seen[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// emptyAnswers are the fields that Berth does not fill.
var emptyAnswers = []string{
	"ContainerResources.windows", "PodSandboxStats.windows", // of another system
	"Image.spec", // Berth keeps no annotations of an image
	// Their call is not implemented.
	"RestorePodResponse.pod_sandbox_id", "RestorePodResponse.restored_containers", "RestoredContainer.container_id",
	"RestoredContainer.name",
}

// optionalAnswers are the fields that depend on the node, each with what it takes. Where a node has it the field is
// filled.
func optionalAnswers() map[string]string {
	optional := map[string]string{
		"SwapUsage.swap_available_bytes": "an account of swap", "SwapUsage.swap_usage_bytes": "an account of swap",
		"SwapUsage.timestamp": "an account of swap", "ContainerStats.swap": "an account of swap",
		"LinuxRuntimeConfiguration.cgroup_driver": "the driver cgroupfs: systemd is the zero",
		"PsiData.Total": "that something waited", "PsiData.Avg10": "that something waited",
		"PsiData.Avg60": "that something waited", "PsiData.Avg300": "that something waited",
	}
	if cgroup.Mode() != cgroup.V2 {
		for _, name := range []string{
			"CpuUsage.psi", "MemoryUsage.psi", "IoUsage.psi", "IoUsage.timestamp", "ContainerStats.io",
			"LinuxPodSandboxStats.io",
			"PsiStats.Full", "PsiStats.Some",
		} {
			optional[name] = "cgroup v2"
		}
	}
	return optional
}

func matches(pattern string) valueCheck {
	form := regexp.MustCompile("^(" + pattern + ")$")
	return func(v protoreflect.Value) bool { return form.MatchString(v.String()) }
}

func between(least, most float64) valueCheck {
	return func(v protoreflect.Value) bool {
		n, ok := v.Interface().(float64)
		if !ok {
			_, _ = fmt.Sscan(v.String(), &n)
		}
		return n >= least && n <= most
	}
}

// takenSince checks a time in nanoseconds: from then until now.
func takenSince(began time.Time) valueCheck {
	return func(v protoreflect.Value) bool {
		return v.Int() >= began.UnixNano() && v.Int() <= time.Now().UnixNano()
	}
}

func podAddress(v protoreflect.Value) bool {
	ip := net.ParseIP(v.String())
	return ip != nil && (strings.HasPrefix(v.String(), "10.89.") || strings.HasPrefix(v.String(), "fd00:89::"))
}

func streamURL(v protoreflect.Value) bool {
	at, err := url.Parse(v.String())
	return err == nil && at.Scheme == "http" && at.Host != "" && len(at.Path) > len("/exec/")
}

// valuesOfAnswers are checks of values on a node whose pods are those of TestAnswersAreFilled.
func valuesOfAnswers(r rig, handler string, began time.Time) map[string]valueCheck {
	id, image, now := matches("[0-9a-f]{64}"), matches("sha256:[0-9a-f]{64}"), takenSince(began)
	checks := map[string]valueCheck{
		"VersionResponse.version": matches(`0\.1\.0`), "VersionResponse.runtime_name": matches("berth"),
		"VersionResponse.runtime_version":     matches(`v?\d+\.\d+\.\d+([-+].*)?`),
		"VersionResponse.runtime_api_version": matches("v1"),
		"PodSandboxStatus.runtime_handler":    matches(handler), "PodSandbox.runtime_handler": matches(handler),
		"PodSandboxNetworkStatus.ip": podAddress, "PodIP.ip": podAddress,
		"ContainerStatus.image_id":                image,
		"Container.image_id":                      image,
		"Image.id":                                image,
		"PullImageResponse.image_ref":             image,
		"ContainerStatus.exit_code":               matches("7|128"),
		"ContainerStatus.reason":                  matches("Error|ContainerCannotRun"),
		"ContainerStatus.message":                 matches(".*log.*"),
		"ContainerStatus.log_path":                matches(regexp.QuoteMeta(r.n.Logs) + `/.*/0\.log`),
		"ContainerStatus.stop_signal":             matches("23"),
		"LinuxContainerUser.uid":                  matches("1000"),
		"LinuxContainerUser.gid":                  matches("1000"),
		"LinuxContainerUser.supplemental_groups":  matches("0|50|777|1000|4444"),
		"ExecSyncResponse.exit_code":              matches("9"),
		"ExecResponse.url":                        streamURL,
		"AttachResponse.url":                      streamURL,
		"PortForwardResponse.url":                 streamURL,
		"NetworkInterfaceUsage.name":              matches("eth0|more0|more1"),
		"FilesystemIdentifier.mountpoint":         matches("/.+"),
		"RuntimeCondition.type":                   matches("RuntimeReady|NetworkReady"),
		"RuntimeCondition.reason":                 matches("[A-Z][A-Za-z]+"),
		"RuntimeCondition.message":                matches(".*" + regexp.QuoteMeta(r.n.CNI) + ".*"),
		"RuntimeHandler.name":                     matches("[a-z-]+"),
		"MetricDescriptor.name":                   matches("container_[a-z0-9_]+"),
		"MetricDescriptor.label_keys":             matches("[a-z_]+"),
		"Metric.name":                             matches("container_[a-z0-9_]+"),
		"LinuxRuntimeConfiguration.cgroup_driver": matches("1"),
		"Image.username":                          matches("app"),
		"Image.size":                              between(1000, 1<<30),
		"Image.repo_tags":                         matches(regexp.QuoteMeta(ref("")) + "[a-z-]+:latest"),
		"Image.repo_digests":                      matches(regexp.QuoteMeta(ref("")) + "[a-z-]+@sha256:[0-9a-f]{64}"),
		"PsiData.Avg10":                           between(0, 100), "PsiData.Avg60": between(0, 100),
		"PsiData.Avg300": between(0, 100),
	}
	for _, name := range []string{
		"RunPodSandboxResponse.pod_sandbox_id", "PodSandboxStatus.id", "PodSandbox.id", "ContainerStatus.id",
		"CreateContainerResponse.container_id",
		"Container.id", "Container.pod_sandbox_id", "ContainerAttributes.id", "PodSandboxAttributes.id",
		"ContainerEventResponse.container_id",
		"PodSandboxMetrics.pod_sandbox_id", "ContainerMetrics.container_id",
	} {
		checks[name] = id
	}
	for name, f := range fixture.AnswerFields() {
		switch string(f.Name()) {
		case "timestamp", "created_at", "started_at", "finished_at":
			checks[name] = now
		}
	}
	return checks
}

// TestAnswersAreFilled asks a busy node for everything, and compares the fields that are filled with those that should
// be.
func TestAnswersAreFilled(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			o := node.Options{Runtime: runtime, Network: dualStack, Tables: "[images]\npinned = [\"*/web:latest\"]\n"}
			r := ownNode(t, o)
			a := &answerSurvey{r, fixture.AnswerFields(), valuesOfAnswers(r, runtime, time.Now()), map[string]bool{}}
			for name := range a.checks {
				if a.all[name] == nil {
					r.Errorf("there is no field %s to check", name)
				}
			}
			a.run(runtime)
			for _, name := range emptyAnswers {
				if a.seen[name] || a.all[name] == nil {
					r.Errorf("%s: filled %v, a field of an answer %v", name, a.seen[name], a.all[name] != nil)
				}
			}
		})
	}
}

// run makes the node busy and asks until all is filled.
func (a *answerSurvey) run(handler string) {
	a.Helper()
	for _, image := range []string{"busybox:latest", "user-app:latest", "web:latest"} {
		a.pull(image)
	}
	c, events, kept := a.connect(), a.listen(), optionalAnswers()
	for _, name := range emptyAnswers {
		kept[name] = "never"
	}
	main := c.busyPod(handler)
	c.ask(main)
	c.unstarted(main)
	c.withoutNetwork()
	deadline := time.Now().Add(timeouts.For(time.Minute))
	for missing := a.missing(kept); len(missing) > 0; missing = a.missing(kept) {
		if time.Now().After(deadline) {
			a.Errorf("not filled: %s", strings.Join(missing, ", "))
			return
		}
		for len(events.got) > 0 {
			a.take(<-events.got)
		}
		c.askStats(main)
		time.Sleep(50 * time.Millisecond)
	}
}
