package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// space is what images take of the disk.
type space struct {
	Images []imageSpace `json:"images"`
	Layers []layerSpace `json:"layers"`
	// Total counts each layer of an image once.
	Total uint64 `json:"total"`
	// Reclaimable is what berth image prune --all would free.
	Reclaimable uint64 `json:"reclaimable"`
	// Kept is in layers that no image has any more, but a container, or work in flight.
	Kept uint64 `json:"kept"`
}

// imageSpace is what one image takes.
type imageSpace struct {
	ID     string   `json:"id"`
	Names  []string `json:"names"`
	Disk   uint64   `json:"disk"`
	Shared uint64   `json:"shared"` // of it, with other images
	Unique uint64   `json:"unique"` // of it, with none
	Used   int      `json:"used"`   // containers
	Pinned bool     `json:"pinned"`
}

// layerSpace is what one layer takes.
type layerSpace struct {
	ID     string   `json:"id"`
	DiffID string   `json:"diffID"`
	Disk   uint64   `json:"disk"`
	Images []string `json:"images"`
}

func imageDuCommand(a *app) *cobra.Command {
	var layers bool
	cmd := &cobra.Command{
		Use: "du", Short: "Show the disk space that images use", Args: exactly(0),
		Long: "Show the disk space that images use: for each, what it shares with others and what its removal " +
			"would free. Nothing is searched: layers were counted when they were unpacked.",
		Example: examples("berth image du --layers"),
	}
	cmd.Flags().BoolVarP(&layers, "layers", "v", false, "show layers instead of images")
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error {
			s, err := measureSpace(cmd.Context(), c)
			if err != nil {
				return err
			}
			if *format == formatJSON {
				return printJSON(stdout(cmd), s)
			}
			return s.print(stdout(cmd), layers)
		})
	}
	return cmd
}

func measureSpace(ctx context.Context, c *client) (*space, error) {
	all, users, err := imageDetails(ctx, c)
	if err != nil {
		return nil, err
	}
	s := spaceOf(all, users)
	used, err := imageBytes(ctx, c)
	if used > s.Total {
		s.Kept = used - s.Total
	}
	return s, err
}

// imageBytes is what all layers take, those of no image included.
func imageBytes(ctx context.Context, c *client) (uint64, error) {
	resp, err := c.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(resp.GetImageFilesystems()) == 0 {
		return 0, err
	}
	return resp.GetImageFilesystems()[0].GetUsedBytes().GetValue(), nil
}

func spaceOf(all []admin.ImageDetail, users map[string][]user) *space {
	s := &space{Images: []imageSpace{}, Layers: layersOf(all)}
	sharers := map[string]int{}
	for _, l := range s.Layers {
		sharers[l.ID] = len(l.Images)
		s.Total += l.Disk
	}
	for _, d := range all {
		i := imageSpace{ID: d.ID, Names: d.Tags, Disk: onDisk(d), Used: len(users[d.ID]), Pinned: d.Pinned}
		if len(i.Names) == 0 {
			i.Names = d.Digests
		}
		for _, l := range distinct(d.Layers) {
			if sharers[l.ID] > 1 {
				i.Shared += l.Disk
			}
		}
		i.Unique = i.Disk - i.Shared
		s.Images = append(s.Images, i)
	}
	sort.SliceStable(s.Images, func(i, j int) bool { return s.Images[i].Disk > s.Images[j].Disk })
	s.Reclaimable = freedBy(all, prunable(all, users, pruneFlags{all: true}, time.Now()))
	return s
}

// layersOf are the layers of all images, each once, the largest first.
func layersOf(all []admin.ImageDetail) []layerSpace {
	layers, at := []layerSpace{}, map[string]int{}
	for _, d := range all {
		for _, l := range distinct(d.Layers) {
			n, known := at[l.ID]
			if !known {
				n = len(layers)
				at[l.ID] = n
				layers = append(layers, layerSpace{ID: l.ID, DiffID: l.DiffID, Disk: l.Disk})
			}
			layers[n].Images = append(layers[n].Images, nameOf(d))
		}
	}
	sort.SliceStable(layers, func(i, j int) bool { return layers[i].Disk > layers[j].Disk })
	return layers
}

func (s *space) print(w io.Writer, layers bool) error {
	t := newTable("IMAGE", "ID", "ON DISK", "SHARED", "UNIQUE", "CONTAINERS", "")
	if layers {
		t = newTable("LAYER", "ON DISK", "IMAGES")
		for _, l := range s.Layers {
			t.add(short(l.DiffID), bytesText(l.Disk), strings.Join(l.Images, " "))
		}
	} else {
		for _, i := range s.Images {
			t.add(i.cells()...)
		}
	}
	if err := t.print(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s in %d layers of %d images; %s of it in images that nothing uses\n",
		bytesText(s.Total), len(s.Layers), len(s.Images), bytesText(s.Reclaimable))
	if err == nil && s.Kept > 0 {
		_, err = fmt.Fprintf(w, "%s more in layers that no image has any more, but a container or work in flight\n",
			bytesText(s.Kept))
	}
	return err
}

func (i imageSpace) cells() []string {
	name, note := "-", ""
	if len(i.Names) > 0 {
		name = i.Names[0]
	}
	if n := len(i.Names) - 1; n > 0 {
		name += fmt.Sprintf(" (+%d)", n)
	}
	if i.Pinned {
		note = "pinned"
	}
	return []string{name, short(i.ID), bytesText(i.Disk), bytesText(i.Shared), bytesText(i.Unique), strconv.Itoa(i.Used),
		note}
}

// pruneFlags say which images to prune.
type pruneFlags struct {
	all, dryRun bool
	olderThan   time.Duration
}

func imagePruneCommand(a *app) *cobra.Command {
	var flags pruneFlags
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove images that nothing uses", Args: exactly(0),
		Long: "Remove images without a tag that no container uses; with --all also those with a tag. Pinned " +
			"images stay. What a pull that failed has left goes, too. To remove containers that have ended, use berth " +
			"container prune.",
		Example: examples("berth image prune", "berth image prune --all --older-than 7d --dry-run"),
	}
	cmd.Flags().BoolVarP(&flags.all, "all", "a", false, "also images with a tag")
	cmd.Flags().VarP((*daysValue)(&flags.olderThan), "older-than", "", "only images pulled longer ago than this: 24h, 7d")
	cmd.Flags().BoolVarP(&flags.dryRun, "dry-run", "n", false, "only print what would be removed")
	cmd.Flags().BoolP("force", "f", false, "without a question, of which there is none")
	_ = cmd.Flags().MarkHidden("force")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(func(c *client) error { return pruneImages(cmd, c, flags) })
	}
	return cmd
}

// daysValue is a duration that may also be in days.
type daysValue time.Duration

func (d *daysValue) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}
func (d *daysValue) Type() string { return "duration" }
func (d *daysValue) Set(s string) error {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 15)
		*d = daysValue(time.Duration(n) * 24 * time.Hour)
		return err
	}
	v, err := time.ParseDuration(s)
	if v < 0 {
		return errors.New("it is negative")
	}
	*d = daysValue(v)
	return err
}

func pruneImages(cmd *cobra.Command, c *client, flags pruneFlags) error {
	all, users, err := imageDetails(cmd.Context(), c)
	if err != nil {
		return err
	}
	doomed := prunable(all, users, flags, time.Now())
	if flags.dryRun {
		for _, d := range doomed {
			fmt.Fprintf(stdout(cmd), "%s %s\n", d.ID, nameOf(d))
		}
		fmt.Fprintf(stdout(cmd), "%s would be free\n", bytesText(freedBy(all, doomed)))
		return nil
	}
	before, err := imageBytes(cmd.Context(), c)
	if err != nil {
		return err
	}
	var failed []error
	for _, d := range doomed {
		if err := removeImage(cmd.Context(), c, d.ID, false); err != nil {
			failed = append(failed, fmt.Errorf("remove image %s: %w", nameOf(d), err))
			continue
		}
		fmt.Fprintf(stdout(cmd), "%s %s\n", d.ID, nameOf(d))
	}
	// What a pull that failed has left belongs to no image.
	if err := c.node.Sweep(cmd.Context()); err != nil && status.Code(err) != codes.Unimplemented { // a daemon of before
		failed = append(failed, err)
	}
	after, err := imageBytes(cmd.Context(), c)
	if err == nil {
		fmt.Fprintf(stdout(cmd), "%s freed\n", bytesText(before-min(after, before)))
	}
	return errors.Join(append(failed, err)...)
}

// prunable are the images that nothing needs, as far as the flags let them be removed.
func prunable(all []admin.ImageDetail, users map[string][]user, flags pruneFlags, now time.Time) []admin.ImageDetail {
	return slices.DeleteFunc(slices.Clone(all), func(d admin.ImageDetail) bool {
		return d.Pinned || len(users[d.ID]) > 0 || !flags.all && len(d.Tags) > 0 || now.Sub(d.PulledAt) < flags.olderThan
	})
}

// freedBy is what the disk has back without the doomed of all images.
func freedBy(all, doomed []admin.ImageDetail) (bytes uint64) {
	gone := map[string]bool{}
	for _, d := range doomed {
		gone[d.ID] = true
	}
	kept := map[string]bool{}
	for _, d := range all {
		for _, l := range d.Layers {
			kept[l.ID] = kept[l.ID] || !gone[d.ID]
		}
	}
	for _, d := range doomed {
		for _, l := range d.Layers {
			if !kept[l.ID] {
				bytes, kept[l.ID] = bytes+l.Disk, true
			}
		}
	}
	return bytes
}
