package nri

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/adaptation/builtin"
	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator"
	library "github.com/containerd/nri/plugins/default-validator/builtin"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/sandbox"
)

// validatorName is that of the library's validator, which the adaptation counts among the plugins.
const validatorName = "00-default-validator"

// validates reports whether containers are judged before they are made.
func (c Config) validates() bool { return c.Validator != nil && c.Validator.Enable }

// withValidator has the adaptation ask the library's validator, if it is enabled. What the validator is asked lists the
// plugins that take part, so the roll takes note of it.
func withValidator(c Config, r *roll) adaptation.Option {
	var plugins []*builtin.BuiltinPlugin
	if v := library.GetDefaultValidator(c.Validator); v != nil {
		judge := v.Handlers.ValidateContainerAdjustment
		v.Handlers.ValidateContainerAdjustment = func(
			ctx context.Context, req *api.ValidateContainerAdjustmentRequest,
		) error {
			r.learn(req.GetPlugins())
			return judge(ctx, req)
		}
		plugins = append(plugins, v)
	}
	return adaptation.WithBuiltinPlugins(plugins...)
}

// unattended judges a container that no plugin is asked about. The adaptation has the validator among its plugins, so
// that it judges all others: this is for a node whose NRI could not be had, where required plugins are not there.
func unattended(ctx context.Context, p *Plugins, r *sandbox.Record, c *sandbox.Container, sp *specs.Spec) error {
	if !p.cfg.validates() {
		return nil
	}
	err := validator.NewDefaultValidator(p.cfg.Validator).ValidateContainerAdjustment(ctx,
		&api.ValidateContainerAdjustmentRequest{Pod: p.messages.pod(r), Container: p.messages.container(r, c, sp)})
	if err != nil {
		return fmt.Errorf("NRI is not on, as berth doctor tells, and nri.validator refuses: %w", err)
	}
	return nil
}

// missing are the plugins that every container requires and that do not take part. Whether one does is known of those
// whose names are known.
func (c Config) missing(names []string) (all []string) {
	if !c.validates() {
		return nil
	}
	for _, required := range c.Validator.RequiredPlugins {
		if !slices.ContainsFunc(names, func(name string) bool {
			_, base, _ := strings.Cut(name, "-")
			return name == required || base == required // as the validator compares
		}) {
			all = append(all, required)
		}
	}
	return all
}
