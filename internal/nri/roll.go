package nri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"google.golang.org/grpc/status"
)

// rememberedFailures is how many failures are kept, for as many requests to ask whose theirs was.
const rememberedFailures = 16

// failures knows which plugin an error came from. The adaptation hands errors of plugins on as they are, and says only to those who
// count whose they were.
type failures struct {
	mu   sync.Mutex // guards last
	last []failure
}

type failure struct {
	plugin string
	err    error
}

// RecordPluginInvocation takes note of a failure.
func (f *failures) RecordPluginInvocation(plugin, _ string, err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = append(f.last[max(0, len(f.last)-rememberedFailures+1):], failure{plugin, err})
}

// RecordPluginLatency has nobody to tell.
func (*failures) RecordPluginLatency(string, string, time.Duration) {}

// RecordPluginAdjustments has nobody to tell.
func (*failures) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {}

// UpdatePluginCount has nobody to tell.
func (*failures) UpdatePluginCount(int) {}

// blame names the plugin that an error came from, in words for a person. What a caller did to itself stays what it was.
func (f *failures) blame(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message() // without the words of the wire
	}
	for _, last := range slices.Backward(f.last) {
		if errors.Is(err, last.err) {
			return fmt.Errorf("plugin %s: %s", last.plugin, text)
		}
	}
	return errors.New(text)
}
