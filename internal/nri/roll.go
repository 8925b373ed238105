package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc/status"
)

// rememberedFailures is how many failures are kept, for as many requests to ask whose theirs was.
const rememberedFailures = 16

// roll knows which plugins there are, and which of them an error came from. The adaptation tells both only to those
// who count: errors of plugins it hands on as they are.
type roll struct {
	count atomic.Int64 // of plugins; never less than there are
	own   int64        // those of them that are the daemon's own

	mu    sync.Mutex // guards what follows
	names map[string]struct{}
	last  []failure
}

type failure struct {
	plugin string
	err    error
}

// RecordPluginInvocation takes note of a plugin that answered, and of a failure. The adaptation drops a plugin that
// fails to answer, and one that refuses to be synchronised.
func (r *roll) RecordPluginInvocation(plugin, operation string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names == nil {
		r.names = map[string]struct{}{}
	}
	if plugin != validatorName {
		r.names[plugin] = struct{}{}
	}
	if err == nil {
		return
	}
	if _, answered := status.FromError(err); !answered || operation == "Synchronize" {
		delete(r.names, plugin)
	}
	r.last = append(r.last[max(0, len(r.last)-rememberedFailures+1):], failure{plugin, err})
}

// learn takes note of all plugins that take part, by name. One that has left by itself shows in nothing else.
func (r *roll) learn(all []*api.PluginInstance) {
	names := map[string]struct{}{}
	for _, p := range all {
		if name := p.GetIndex() + "-" + p.GetName(); name != validatorName {
			names[name] = struct{}{}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names = names
}

// RecordPluginLatency does nothing.
func (*roll) RecordPluginLatency(string, string, time.Duration) {}

// RecordPluginAdjustments does nothing.
func (*roll) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {}

// UpdatePluginCount takes note of how many plugins there are. The adaptation counts one that joins before it lets go
// of Hold. It counts those that have left at the next event, so the number may be too high, and never too low.
func (r *roll) UpdatePluginCount(n int) { r.count.Store(int64(n)) }

// present is how many plugins there are, and their names where those that are known are as many: where one has left by
// itself only the number is told, until the validator is asked about a container.
func (r *roll) present() (int, []string) {
	n := int(max(0, r.count.Load()-r.own))
	r.mu.Lock()
	defer r.mu.Unlock()
	if n == 0 || len(r.names) != n {
		return n, nil
	}
	return n, slices.Sorted(maps.Keys(r.names))
}

// blame names the plugin that an error of a request came from, in words for a person. What the one who asked did to
// itself, which shows in ctx, stays what it was: a plugin that does not answer in time is at fault itself.
func (r *roll) blame(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message() // without the words of the wire
	}
	for _, last := range slices.Backward(r.last) {
		if !errors.Is(err, last.err) {
			continue
		}
		if !strings.Contains(text, last.plugin) { // the adaptation names it where it did not answer
			text = fmt.Sprintf("plugin %s: %s", last.plugin, text)
		}
		break
	}
	return errors.New(text)
}
