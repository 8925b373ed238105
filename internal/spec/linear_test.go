package spec

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// many is the input of a privileged container with n of all that a request lists, on a host with n devices.
func many(t *testing.T, n int) Input {
	in := testInput(t, sections{
		{"pod", `{"linux":{"security_context":{"privileged":true}}}`},
		{"container", `{"linux":{"security_context":{"privileged":true,"readonly_rootfs":true,` +
			`"namespace_options":{"pid":"CONTAINER"}}}}`},
	})
	host := make([]specs.LinuxDevice, n)
	for i := range host {
		host[i] = specs.LinuxDevice{Path: fmt.Sprintf("/dev/disk/%d", i), Type: "b", Major: 8, Minor: int64(i)}
	}
	in.StatDevice = func(_ context.Context, p string) ([]specs.LinuxDevice, error) {
		if p == "/dev" {
			return host, nil
		}
		return []specs.LinuxDevice{{Path: p, Type: "c", Major: 1, Minor: 3}}, nil
	}
	c := in.Container
	c.Annotations, c.Labels = map[string]string{}, map[string]string{}
	for i := range n {
		name := fmt.Sprint("x", i)
		c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: name, Value: []byte("v")})
		c.Args = append(c.Args, name)
		if i < 30_000 { // of more than 32768 the request is refused
			c.Devices = append(c.Devices, &runtimeapi.Device{HostPath: "/dev/null", ContainerPath: "/dev/" + name})
		}
		m := &runtimeapi.Mount{HostPath: "/h", ContainerPath: "/m/" + name}
		c.Mounts = append(c.Mounts, m)
		in.Mounts = append(in.Mounts, ResolvedMount{Mount: m, Source: "/h"})
		in.Volumes = append(in.Volumes, Volume{Path: "/v/" + name, Source: "/v"})
		c.Annotations[name], c.Labels[name] = "v", "v"
	}
	return in
}

// steps counts how often a context is looked at, and ends it at one of the looks.
type steps struct {
	context.Context
	seen, end int
}

func (s *steps) Err() error {
	if s.seen++; s.end > 0 && s.seen >= s.end {
		return context.Canceled
	}
	return nil
}

// TestBuildIsLinear doubles the input twice, and wants what is allocated to grow no faster than it.
func TestBuildIsLinear(t *testing.T) {
	cost := func(n int) float64 {
		in := many(t, n)
		return testing.AllocsPerRun(3, func() {
			if _, _, err := Build(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		})
	}
	one, two, four := cost(1000), cost(2000), cost(4000)
	if two > 2.2*one || four > 2.2*two {
		t.Errorf("%.0f allocations, of twice the input %.0f, of four times %.0f", one, two, four)
	}
}

// TestBuildOfMuch has so much of all that looking through a list for each of its entries would take minutes.
func TestBuildOfMuch(t *testing.T) {
	const n = 200_000
	in := many(t, n)
	in.Container.Args, in.Container.Envs = nil, in.Container.Envs[:n/2] // what a process can have
	sp, _, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(sp.Linux.Devices); got != n+30_000 {
		t.Errorf("%d devices", got)
	}
	if got := len(sp.Mounts); got < 2*n {
		t.Errorf("%d mounts", got)
	}
}

// TestDirectoryIsWalkedOnce asks for one directory of devices many times, in each way that it can be written.
func TestDirectoryIsWalkedOnce(t *testing.T) {
	in, walks := many(t, 10), 0
	look := in.StatDevice
	in.StatDevice = func(ctx context.Context, p string) ([]specs.LinuxDevice, error) {
		walks++
		return look(ctx, p)
	}
	in.Container.Devices = nil
	for i := range 1000 {
		in.Container.Devices = append(in.Container.Devices, &runtimeapi.Device{
			HostPath: []string{"/dev", "/dev/", "/dev/./"}[i%3], ContainerPath: fmt.Sprint("/d", i)})
	}
	out, _, err := Build(t.Context(), in)
	if err != nil || walks != 1 || len(out.Linux.Devices) != 10+10*1000 {
		t.Errorf("%d walks, %d devices, %v", walks, len(out.Linux.Devices), err)
	}
	in.Container.Devices = append(in.Container.Devices, in.Container.Devices...)
	in.Container.Devices = append(in.Container.Devices, in.Container.Devices...)
	if _, _, err := Build(t.Context(), in); !fail.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("40000 devices: %v", err)
	}
}

// TestBuildEndsWithItsContext ends the context at each of the looks at it.
func TestBuildEndsWithItsContext(t *testing.T) {
	in := many(t, 10)
	whole := &steps{Context: t.Context()}
	if _, _, err := Build(whole, in); err != nil {
		t.Fatal(err)
	}
	if whole.seen < 15 {
		t.Errorf("the context is looked at %d times: not at each step and device", whole.seen)
	}
	for end := range whole.seen {
		ctx := &steps{Context: t.Context(), end: end + 1}
		if _, _, err := Build(ctx, in); !errors.Is(err, context.Canceled) || ctx.seen > end+1 {
			t.Errorf("ended at look %d: %d looks, %v", end+1, ctx.seen, err)
		}
	}
}
