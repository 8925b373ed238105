package nri

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/sandbox"
	"berth/test/timeouts"
)

// bare are pods without namespaces and containers without specs.
type bare struct{}

func (bare) Paths(*sandbox.Record) map[string]string { return nil }
func (bare) RuntimeSpec(sandbox.ID) (*specs.Spec, error) {
	return nil, errors.New("there is none")
}

// sleeper is a plugin that answers about containers when end is closed.
type sleeper struct {
	shown
	end chan struct{}
}

func (s *sleeper) CreateContainer(
	context.Context, *api.PodSandbox, *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	<-s.end
	return nil, nil, nil
}

// judge is a plugin that says when end is closed whether what others want may be done.
type judge struct {
	shown
	end chan struct{}
}

func (j *judge) ValidateContainerAdjustment(context.Context, *api.ValidateContainerAdjustmentRequest) error {
	<-j.end
	return nil
}

// A plugin that does not answer in time and whose answer is required refuses, by name. Only a caller whose own time is
// over is told that.
func TestTimeOfAPluginIsNotItsCallers(t *testing.T) {
	for name, plugin := range map[string]func(end chan struct{}, s shown) any{
		"fails requests": func(end chan struct{}, s shown) any { return &sleeper{s, end} },
		"validates":      func(end chan struct{}, s shown) any { return &judge{s, end} },
	} {
		t.Run(name, func(t *testing.T) {
			p := plugins(timeouts.For(20*time.Second), timeouts.For(20*time.Second))
			results := run(t, p, 1)
			p.messages = messages{bare{}, bare{}}
			end := make(chan struct{})
			policy := stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true})
			join(t, p, plugin(end, shown{synchronize: func(context.Context) error { return nil }}), policy)
			t.Cleanup(func() { close(end) })
			if r := wait(t, results); r.err != nil {
				t.Fatal(r.err)
			}
			adjust := func(ctx context.Context) error {
				_, err := p.Adjust(ctx, &sandbox.Record{}, &sandbox.Container{ID: "c"}, &specs.Spec{Linux: &specs.Linux{}})
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if err := adjust(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a caller whose time is over: %v", err)
			}
			adaptation.SetPluginRequestTimeout(10 * time.Millisecond)
			err := adjust(t.Context())
			if err == nil || errors.Is(err, context.DeadlineExceeded) || strings.Count(err.Error(), "10-p") != 1 {
				t.Errorf("one who has time: %v", err)
			}
		})
	}
}
