package nri

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/sandbox"
)

// validatorName is that of the library's validator, which the adaptation counts among the plugins.
const validatorName = "00-default-validator"

// validates reports whether containers are judged before they are made.
func (c Config) validates() bool { return c.Validator != nil && c.Validator.Enable }

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
			return base == required
		}) {
			all = append(all, required)
		}
	}
	return all
}
