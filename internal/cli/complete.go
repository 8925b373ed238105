package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// choices lists what can be named at some place of a command line.
type choices func(ctx context.Context, c *client) ([]string, error)

// complete offers what can be named, for every argument of a command.
func (a *app) complete(list choices) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(contextOf(cmd)), 2*time.Second)
		defer cancel()
		var names []string
		err := a.with(func(c *client) (err error) {
			names, err = list(ctx, c)
			return err
		})
		if err != nil {
			cobra.CompErrorln(err.Error())
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return among(names, args, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

// completeFirst offers what can be named, for the first argument alone.
func (a *app) completeFirst(list choices) cobra.CompletionFunc {
	complete := a.complete(list)
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return complete(cmd, args, prefix)
	}
}

// among keeps of names what begins with prefix and is not there yet, each once.
func among(names, args []string, prefix string) []string {
	seen := map[string]bool{"": true}
	for _, a := range args {
		seen[a] = true
	}
	var out []string
	for _, name := range names {
		if !seen[name] && strings.HasPrefix(name, prefix) {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}

func containersWhere(ok func(*runtimeapi.Container) bool) choices {
	return func(ctx context.Context, c *client) ([]string, error) {
		resp, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		var names []string
		for _, i := range resp.GetContainers() {
			if ok(i) {
				names = append(names, i.GetMetadata().GetName(), short(i.GetId()))
			}
		}
		return names, err
	}
}

var (
	containers        = containersWhere(func(*runtimeapi.Container) bool { return true })
	runningContainers = containersWhere(func(c *runtimeapi.Container) bool {
		return c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING
	})
	targets    = all(containers, pods)
	everything = all(containers, pods, images)
)

func pods(ctx context.Context, c *client) ([]string, error) {
	resp, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	var names []string
	for _, p := range resp.GetItems() {
		names = append(names, p.GetMetadata().GetName(), short(p.GetId()))
	}
	return names, err
}

func images(ctx context.Context, c *client) ([]string, error) {
	resp, err := c.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	var names []string
	for _, i := range resp.GetImages() {
		names = append(append(names, i.GetRepoTags()...), short(i.GetId()))
	}
	return names, err
}

func all(lists ...choices) choices {
	return func(ctx context.Context, c *client) ([]string, error) {
		var names []string
		for _, list := range lists {
			more, err := list(ctx, c)
			if err != nil {
				return nil, err
			}
			names = append(names, more...)
		}
		return names, nil
	}
}
