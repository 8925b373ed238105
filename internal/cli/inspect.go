package cli

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// The kinds of what can be inspected.
const (
	kindContainer = "container"
	kindPod       = "pod"
	kindImage     = "image"
)

func (a *app) inspectCommand() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use: "inspect NAME...", Aliases: []string{"inspectp", "inspecti"}, Args: atLeast(1),
		Short: "Show everything that is known of containers, pods or images, as JSON",
		Long: "Show everything that is known of containers, pods or images, as JSON: one object for each, in the order " +
			"of the names. A name that several of them have is looked up in this order; --type chooses.",
		Example:           examples("berth inspect web", "berth inspect --type pod web", "berth inspect web db"),
		ValidArgsFunction: a.complete(everything),
	}
	cmd.Flags().StringVar(&kind, "type", "", "`kind` of object: container, pod or image")
	_ = cmd.RegisterFlagCompletionFunc("type",
		cobra.FixedCompletions([]string{kindContainer, kindPod, kindImage}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if called := map[string]string{"inspectp": kindPod, "inspecti": kindImage}[cmd.CalledAs()]; called != "" {
			kind = called // crictl's names
		}
		return a.with(func(c *client) error {
			var failed []error
			for _, word := range args {
				v, err := inspect(cmd.Context(), c, kind, word)
				if err == nil {
					err = printJSON(stdout(cmd), v)
				}
				failed = append(failed, err)
			}
			return errors.Join(failed...)
		})
	}
	return cmd
}

// inspected is what inspect prints.
type inspected struct {
	Kind   string         `json:"kind"`
	Status any            `json:"status"`
	Info   map[string]any `json:"info,omitempty"`
}

// inspect shows one thing: of kind, or of the first kind that knows the word where kind is "".
func inspect(ctx context.Context, c *client, kind, word string) (*inspected, error) {
	lookups := []struct {
		kind string
		find func(context.Context, *client, string) (*inspected, error)
	}{{kindContainer, inspectContainer}, {kindPod, inspectPod}, {kindImage, inspectImage}}
	known := false
	for _, l := range lookups {
		if kind != "" && kind != l.kind {
			continue
		}
		known = true
		v, err := l.find(ctx, c, word)
		if _, unknown := err.(*unknownError); unknown && kind == "" {
			continue
		}
		return v, err
	}
	if !known {
		return nil, fail.New(errdefs.ErrInvalidArgument, "--type %s: there is %s, %s and %s", kind, kindContainer, kindPod,
			kindImage)
	}
	return nil, &unknownError{"container, pod or image", word}
}

func inspectContainer(ctx context.Context, c *client, word string) (*inspected, error) {
	id, err := c.container(ctx, word)
	if err != nil {
		return nil, err
	}
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil, err
	}
	return newInspected(kindContainer, resp.GetStatus(), resp.GetInfo())
}

func inspectPod(ctx context.Context, c *client, word string) (*inspected, error) {
	n, err := c.survey(ctx)
	if err != nil {
		return nil, err
	}
	id, err := pick(kindPod, word, n.podSubjects())
	if err != nil {
		return nil, err
	}
	resp, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return nil, err
	}
	return newInspected(kindPod, resp.GetStatus(), resp.GetInfo())
}

func inspectImage(ctx context.Context, c *client, word string) (*inspected, error) {
	img, err := c.image(ctx, word)
	if err != nil {
		return nil, err
	}
	resp, err := c.images.ImageStatus(ctx,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: img.GetId()}, Verbose: true})
	if err != nil {
		return nil, err
	}
	if resp.GetImage() == nil {
		return nil, &unknownError{kindImage, word}
	}
	return newInspected(kindImage, resp.GetImage(), resp.GetInfo())
}

func newInspected(kind string, m proto.Message, info map[string]string) (*inspected, error) {
	data, err := protoJSON(m)
	if err != nil {
		return nil, err
	}
	v := &inspected{Kind: kind, Status: data, Info: map[string]any{}}
	for key, text := range info {
		v.Info[key] = text
		if json.Valid([]byte(text)) {
			v.Info[key] = json.RawMessage(text)
		}
	}
	return v, nil
}
