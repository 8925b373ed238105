package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

func (a *app) pullCommand() *cobra.Command {
	var req admin.PullRequest
	var credentials string
	var quiet bool
	cmd := &cobra.Command{
		Use: "pull IMAGE", Short: "Pull an image",
		Long: "Pull an image. The credentials are those of --creds or BERTH_CREDS, else those that berth login or " +
			"docker login has stored for the registry.", Args: exactly(1), ValidArgsFunction: a.completeFirst(images),
		Example: examples("berth pull docker.io/library/nginx:latest", "berth pull --platform linux/arm64 "+
			"docker.io/library/busybox:latest",
			"BERTH_CREDS=user:password berth pull registry.example/team/app:v1"),
	}
	cmd.Flags().StringVar(&req.Platform, "platform", "", "`os/arch[/variant]` instead of this machine's")
	cmd.Flags().StringVar(&credentials, "creds", os.Getenv("BERTH_CREDS"), "`USER:PASSWORD` for the registry; better in "+
		"the environment, as BERTH_CREDS, where others do not see it")
	cmd.Flags().Lookup("creds").DefValue = ""
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress, and print only the name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.Reference = args[0]
		if credentials != "" {
			var ok bool
			if req.Username, req.Password, ok = strings.Cut(credentials, ":"); !ok {
				return errors.New("--creds: want USER:PASSWORD")
			}
		}
		return a.with(func(c *client) error {
			img, err := c.pull(cmd.Context(), &req, stderr(cmd), quiet)
			if err != nil {
				return err
			}
			name := img.ID
			if len(img.Names) > 0 {
				name = img.Names[0]
			}
			if other := leadsElsewhere(cmd.Context(), c, &req, img); other != "" {
				name = img.ID
				fmt.Fprintf(stderr(cmd), "berth: %s leads to %s, the image for this node's platform: name the one that was "+
					"pulled by its id\n", req.Reference, other)
			}
			if quiet {
				_, err := fmt.Fprintln(stdout(cmd), name)
				return err
			}
			return printImage(stdout(cmd), img)
		})
	}
	return cmd
}

// pull brings an image and shows its progress on w, unless it is to be quiet.
func (c *client) pull(ctx context.Context, req *admin.PullRequest, w io.Writer, quiet bool) (admin.Image, error) {
	withCredentials(req, w)
	if quiet {
		w = io.Discard
	}
	p := newProgress(w)
	defer p.end()
	img, err := c.node.Pull(ctx, req, p.event)
	if err != nil {
		if strings.Contains(err.Error(), "pull image "+req.Reference) { // the daemon names it
			return img, err
		}
		return img, fmt.Errorf("pull %s: %w", req.Reference, err)
	}
	return img, nil
}

// leadsElsewhere returns the id of another image that the name leads to which was pulled for a platform. The digest of
// an index leads to the image for the node's own platform, where that was pulled, too.
func leadsElsewhere(ctx context.Context, c *client, req *admin.PullRequest, img admin.Image) string {
	if req.Platform == "" {
		return ""
	}
	resp, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: req.Reference},
	})
	if err != nil || resp.GetImage().GetId() == img.ID {
		return ""
	}
	return resp.GetImage().GetId()
}

func printImage(w io.Writer, img admin.Image) error {
	_, err := fmt.Fprintln(w, strings.Join(append([]string{img.ID}, img.Names...), " "))
	return err
}
