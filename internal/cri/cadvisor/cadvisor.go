// Package cadvisor tells what pods and containers use in the metrics that cAdvisor made known: the same names, the same
// labels.
//
// CRI carries whole numbers only. So what is in seconds by its name is in whole seconds, rounded down.
package cadvisor

import (
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/network"
)

// Subject is a pod or a container, with what was read of it.
type Subject struct {
	Labels
	Usage   cgroup.Usage
	Began   time.Time
	Traffic network.Traffic // of a pod
	// What follows a pod has none of.
	Disk      *Disk
	Processes *Processes
}

// Labels are those that every metric has. Of a pod Container, Image and Name are empty, as cAdvisor has it.
type Labels struct {
	Container string // its name in the pod
	Cgroup    string // where it is in the tree of cgroups, which is the label id
	Image     string
	Name      string // the container's id
	Namespace string
	Pod       string
}

// keys are the label keys of Labels, in the order of values.
var keys = []string{"container", "id", "image", "name", "namespace", "pod"}

func (l Labels) values() []string {
	return []string{l.Container, l.Cgroup, l.Image, l.Name, l.Namespace, l.Pod}
}

// Disk is the writable layer of a container and the file system that it is on.
type Disk struct {
	Device                   string
	Used                     uint64
	At                       time.Time // when Used was read
	Size, Inodes, FreeInodes uint64    // of the file system
}

// family is one metric: what it is, and its values for a subject.
type family struct {
	name, help string
	kind       runtimeapi.MetricType
	labels     []string // beside those that all have
	values     func(s *Subject, add adder)
}

// adder takes one value, with the values of the family's own labels.
type adder func(value uint64, labels ...string)

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
)

// Descriptors are those of all metrics.
func Descriptors() []*runtimeapi.MetricDescriptor {
	all := make([]*runtimeapi.MetricDescriptor, 0, len(families))
	for _, f := range families {
		all = append(all, &runtimeapi.MetricDescriptor{Name: f.name, Help: f.help, LabelKeys: slices.Concat(keys, f.labels)})
	}
	return all
}

// Metrics are what is known of a subject.
func Metrics(s *Subject) []*runtimeapi.Metric {
	base := s.Labels.values()
	metrics := make([]*runtimeapi.Metric, 0, len(families)+8)
	for i := range families {
		f := &families[i]
		f.values(s, func(value uint64, labels ...string) {
			all := base
			if len(labels) > 0 {
				all = slices.Concat(base, labels)
			}
			metrics = append(metrics, &runtimeapi.Metric{
				Name: f.name, MetricType: f.kind, LabelValues: all, Value: &runtimeapi.UInt64Value{Value: value},
				Timestamp: f.stamp(s),
			})
		})
	}
	return metrics
}

// stamp is 0 for what was read just now.
func (f *family) stamp(s *Subject) int64 {
	if f.name == diskUsage && s.Disk != nil {
		return s.Disk.At.UnixNano()
	}
	return 0
}
