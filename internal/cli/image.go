package cli

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/internal/fail"
)

// imageCommand is "berth image", with all there is to do with images.
func imageCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Short: "The commands about images", DisableFlagsInUseLine: true, Args: subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }, SuggestionsMinimumDistance: 2,
	}
	list := imageListCommand(a, "list")
	list.Aliases = []string{"ls"}
	cmd.AddCommand(list, imageInspectCommand(a), imageHistoryCommand(a), imageImportCommand(a), imageExportCommand(a),
		imageRmCommand(a, "rm"), tagged(tagCommand(a)), imagePruneCommand(a), imageDuCommand(a))
	return cmd
}

// tagged is a command without its examples, which are those of its other place.
func tagged(cmd *cobra.Command) *cobra.Command {
	cmd.Example = ""
	return cmd
}

// listFlags say what a list of images shows.
type listFlags struct {
	quiet, digests, dangling, whole bool
	filters                         []string
	patterns                        []string // of names; none is all
	format                          *string
}

func imageListCommand(a *app, name string) *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use: name + " [NAME...]", Short: "List images", Args: atLeast(0), ValidArgsFunction: a.complete(images),
		Long: "List images, or only those whose names match: nginx, nginx:1.27, quay.io/team/*. Keys of --filter: " +
			"reference (such a name), dangling (true, false).",
	}
	cmd.Flags().BoolVarP(&flags.quiet, "quiet", "q", false, "print only ids")
	cmd.Flags().BoolVar(&flags.digests, "digests", false, "also names by digest")
	cmd.Flags().BoolVar(&flags.dangling, "dangling", false, "only images without a tag")
	cmd.Flags().BoolVar(&flags.whole, "no-trunc", false, "do not shorten ids")
	cmd.Flags().StringArrayVarP(&flags.filters, "filter", "f", nil, "only images that match `KEY=VALUE`; "+
		"see above")
	cmd.Flags().BoolP("all", "a", true, "all images, which is what is listed anyway")
	_ = cmd.Flags().MarkHidden("all")
	flags.format = outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		flags.patterns = args
		return a.with(func(c *client) error { return listImages(cmd, c, flags) })
	}
	return cmd
}

// filter returns what is not to be listed.
func (f *listFlags) filter() (hide func(*runtimeapi.Image) bool, err error) {
	var dangling *bool
	if f.dangling {
		dangling = &f.dangling
	}
	patterns := slices.Clone(f.patterns)
	for _, text := range f.filters {
		switch key, value, _ := strings.Cut(text, "="); key {
		case "reference":
			patterns = append(patterns, value)
		case "dangling":
			b, err := strconv.ParseBool(value)
			if err != nil {
				return nil, fail.New(errdefs.ErrInvalidArgument, "--filter %s: want true or false", text)
			}
			dangling = &b
		default:
			return nil, fail.New(errdefs.ErrInvalidArgument, "--filter %s: there is reference= and dangling=", text)
		}
	}
	return func(i *runtimeapi.Image) bool {
		if dangling != nil && *dangling != (len(i.GetRepoTags()) == 0) {
			return true
		}
		return len(patterns) > 0 && !slices.ContainsFunc(patterns, func(pattern string) bool {
			return slices.ContainsFunc(append(slices.Clone(i.GetRepoTags()), i.GetRepoDigests()...),
				func(name string) bool { return isImage(pattern, name) })
		})
	}, nil
}

// isImage reports whether a pattern as people write it, nginx or nginx:1 or quay.io/*, means the image of this name.
func isImage(pattern, name string) bool {
	ref, err := reference.ParseAnyReference(name)
	if err != nil {
		repository, _, _ := strings.Cut(name, "@")
		whole, err := path.Match(pattern, repository)
		return pattern == name || whole && err == nil
	}
	familiar, err := reference.FamiliarMatch(pattern, ref)
	whole, wholeErr := path.Match(pattern, name)
	repository := false
	if named, ok := ref.(reference.Named); ok {
		repository = named.Name() == pattern
	}
	return familiar && err == nil || whole && wholeErr == nil || repository
}

func listImages(cmd *cobra.Command, c *client, flags listFlags) error {
	hide, err := flags.filter()
	if err != nil {
		return err
	}
	resp, err := c.images.ListImages(cmd.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		return err
	}
	resp.Images = slices.DeleteFunc(resp.Images, hide)
	if *flags.format == formatJSON {
		return printProto(stdout(cmd), resp)
	}
	if flags.quiet {
		for _, i := range resp.GetImages() {
			fmt.Fprintln(stdout(cmd), i.GetId())
		}
		return nil
	}
	var rows [][]string
	for _, i := range resp.GetImages() {
		note, id := "", short(i.GetId())
		if i.GetPinned() {
			note = "pinned"
		}
		if flags.whole {
			id = i.GetId()
		}
		names := imageNames(i)
		if flags.digests && len(i.GetRepoTags()) > 0 {
			names = append(slices.Clone(names), i.GetRepoDigests()...)
		}
		for _, name := range names {
			rows = append(rows, []string{name, id, bytesText(i.GetSize()), note})
		}
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i][0] < rows[j][0] })
	t := newTable("IMAGE", "ID", "SIZE", "")
	t.rows = append(t.rows, rows...)
	return t.print(stdout(cmd))
}

// imageNames are an image's tags; without any, its digests; without those, a dash.
func imageNames(i *runtimeapi.Image) []string {
	if tags := i.GetRepoTags(); len(tags) > 0 {
		return tags
	}
	if digests := i.GetRepoDigests(); len(digests) > 0 {
		return digests
	}
	return []string{"-"}
}

func imageRmCommand(a *app, name string) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: name + " IMAGE...", Short: "Remove images", Args: atLeast(1), ValidArgsFunction: a.complete(images),
		Long: "Remove images. If an image has several tags, only the tag that is given is removed; given the id, " +
			"the image is removed with all its names. If an image in use is removed by force, the layers that a " +
			"container needs stay as long as the container.",
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also images that containers use")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error { return removeImages(cmd, c, args, force) })
	}
	return cmd
}

func removeImages(cmd *cobra.Command, c *client, args []string, force bool) error {
	var failed []error
	for _, word := range args {
		if err := removeImage(cmd.Context(), c, word, force); err != nil {
			failed = append(failed, fmt.Errorf("remove image %s: %w", word, err))
			continue
		}
		fmt.Fprintln(stdout(cmd), word)
	}
	return errors.Join(failed...)
}

func removeImage(ctx context.Context, c *client, word string, force bool) error {
	img, err := c.image(ctx, word)
	if err != nil {
		return err
	}
	if tag := tagOf(img, word); tag != "" && len(img.GetRepoTags()) > 1 {
		return c.node.Tag(ctx, &admin.TagRequest{Name: tag})
	}
	if !force {
		found, err := c.node.Images(ctx, &admin.ImagesRequest{Images: []string{img.GetId()}})
		if err != nil {
			return err
		}
		users, err := imageUsers(ctx, c, found...)
		if err != nil {
			return err
		}
		if used := users[img.GetId()]; len(used) > 0 {
			return fmt.Errorf("used by %s: remove that first (berth rm), or use --force", some(used))
		}
	}
	_, err = c.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: img.GetId()}})
	return err
}

// tagOf is the tag of an image that a word is; "" where it is the id, or a digest.
func tagOf(img *runtimeapi.Image, word string) string {
	for _, tag := range img.GetRepoTags() {
		named, err := reference.ParseNormalizedNamed(word)
		if tag == word || err == nil && reference.TagNameOnly(named).String() == tag {
			return tag
		}
	}
	return ""
}

// user is a container that an image was used for.
type user struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Pod   string `json:"pod"`
	State string `json:"state"`
}

func (u user) String() string { return "container " + u.Name + " (" + short(u.ID) + ")" }

// some names the first of the users, and counts the rest.
func some(users []user) string {
	if n := len(users) - 1; n > 0 {
		return fmt.Sprintf("%s and %d more", users[0], n)
	}
	return users[0].String()
}

// imageUsers are the containers that run or mount each of the images, by the images' ids.
func imageUsers(ctx context.Context, c *client, images ...admin.ImageDetail) (map[string][]user, error) {
	resp, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string][]user{}
	for _, i := range resp.GetContainers() {
		u := user{i.GetId(), i.GetMetadata().GetName(), i.GetPodSandboxId(), stateText(i.GetState().String())}
		for _, d := range images {
			if i.GetImageId() == d.ID || slices.Contains(d.Containers, u.ID) {
				out[d.ID] = append(out[d.ID], u)
			}
		}
	}
	return out, nil
}

// imageDetails asks about all images, and who uses them.
func imageDetails(ctx context.Context, c *client) ([]admin.ImageDetail, map[string][]user, error) {
	all, err := c.node.Images(ctx, &admin.ImagesRequest{})
	if err != nil {
		return nil, nil, err
	}
	users, err := imageUsers(ctx, c, all...)
	return all, users, err
}

// imageDetail asks about the one image that word means, with its config.
func imageDetail(ctx context.Context, c *client, word string) (*admin.ImageDetail, error) {
	img, err := c.image(ctx, word)
	if err != nil {
		return nil, err
	}
	found, err := c.node.Images(ctx, &admin.ImagesRequest{Images: []string{img.GetId()}, Config: true})
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, &unknownError{kindImage, word}
	}
	return &found[0], nil
}

// nameOf is what a person calls an image.
func nameOf(d admin.ImageDetail) string {
	for _, names := range [][]string{d.Tags, d.Digests} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return "-"
}

// onDisk is what an image's layers take, each counted once.
func onDisk(d admin.ImageDetail) (bytes uint64) {
	for _, l := range distinct(d.Layers) {
		bytes += l.Disk
	}
	return bytes
}

// distinct leaves one of the layers that are the same on the disk.
func distinct(layers []admin.LayerDetail) []admin.LayerDetail {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(layers), func(l admin.LayerDetail) bool {
		was := seen[l.ID]
		seen[l.ID] = true
		return was
	})
}

// yesNo is a truth in a table.
func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// oneLine takes the line breaks and tabs out of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
