package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"berth/internal/admin"
)

func imageInspectCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "inspect IMAGE...", Short: "Show everything that is known of images", Args: atLeast(1),
		ValidArgsFunction: a.complete(images),
		Example: examples("berth image inspect docker.io/library/nginx:latest", "berth image inspect -o json "+
			"nginx | jq .config.config.Env"),
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			var failed []error
			for i, word := range args {
				if i > 0 && *format != formatJSON {
					fmt.Fprintln(stdout(cmd))
				}
				failed = append(failed, showImage(cmd, c, word, *format))
			}
			return errors.Join(failed...)
		})
	}
	return cmd
}

// inspectedImage is what image inspect prints as JSON.
type inspectedImage struct {
	admin.ImageDetail
	Disk   uint64 `json:"disk"` // bytes of all its layers
	UsedBy []user `json:"usedBy"`
}

func showImage(cmd *cobra.Command, c *client, word, format string) error {
	d, err := imageDetail(cmd.Context(), c, word)
	if err != nil {
		return err
	}
	users, err := imageUsers(cmd.Context(), c, *d)
	if err != nil {
		return err
	}
	v := inspectedImage{*d, onDisk(*d), users[d.ID]}
	if format == formatJSON {
		return printJSON(stdout(cmd), v)
	}
	var config ocispec.Image
	if err := decodeConfig(d, &config); err != nil {
		return err
	}
	if err := (sheet{stdout(cmd)}).print(append(v.facts(time.Now()), configFacts(config)...)); err != nil {
		return err
	}
	return v.printLayers(stdout(cmd))
}

// decodeConfig reads the config of an image. An artifact has none: its manifest is in its place.
func decodeConfig(d *admin.ImageDetail, config *ocispec.Image) error {
	if d.Artifact != "" {
		return nil
	}
	if err := json.Unmarshal(d.Config, config); err != nil {
		return fmt.Errorf("image config of %s: %w", d.ID, err)
	}
	return nil
}

// fact is one line of a sheet, or several with one name.
type fact struct {
	name   string
	values []string
}

// sheet prints facts under each other. Those without a value are left out.
type sheet struct{ io.Writer }

func (s sheet) print(facts []fact) error {
	width := 0
	for _, f := range facts {
		width = max(width, len(f.name))
	}
	var text strings.Builder
	for _, f := range facts {
		name := f.name
		for _, v := range f.values {
			if terminalOf(s.Writer) != nil {
				v = visibleLine(v)
			}
			if v != "" {
				fmt.Fprintf(&text, "%-*s   %s\n", width, name, v)
				name = ""
			}
		}
	}
	_, err := io.WriteString(s, text.String())
	return err
}

func (v inspectedImage) facts(now time.Time) []fact {
	var used []string
	for _, u := range v.UsedBy {
		used = append(used, fmt.Sprintf("%s, %s", u, u.State))
	}
	if len(used) == 0 {
		used = []string{"no container"}
	}
	return []fact{
		{"id", []string{v.ID}}, {"tags", v.Tags}, {"digests", v.Digests}, {"platform", []string{v.Platform}},
		{"artifact", []string{v.Artifact}},
		{
			"size",
			[]string{
				fmt.Sprintf("%s to transfer, %s on disk in %d layers", bytesText(v.Size), bytesText(v.Disk), len(v.Layers))}},
		{"pulled", []string{v.PulledAt.Local().Format(time.DateTime) + ", " + ago(v.PulledAt, now)}},
		{"pinned", []string{yesNo(v.Pinned)}}, {"durable", []string{yesNo(v.Durable)}}, {"used by", used},
	}
}

func configFacts(c ocispec.Image) []fact {
	created := ""
	if c.Created != nil {
		created = c.Created.Local().Format(time.DateTime)
	}
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(c.Config.Labels)) {
		labels = append(labels, key+"="+oneLine(c.Config.Labels[key]))
	}
	return []fact{
		{"created", []string{created}}, {"author", []string{c.Author}}, {"user", []string{c.Config.User}},
		{"entrypoint", []string{words(c.Config.Entrypoint)}}, {"command", []string{words(c.Config.Cmd)}},
		{"directory", []string{c.Config.WorkingDir}}, {"environment", c.Config.Env},
		{"ports", slices.Sorted(maps.Keys(c.Config.ExposedPorts))}, {"volumes", slices.Sorted(maps.Keys(c.Config.Volumes))},
		{"stop signal", []string{c.Config.StopSignal}}, {"labels", labels},
	}
}

// words is a command as JSON shows it: what is one argument stays visible.
func words(args []string) string {
	if len(args) == 0 {
		return ""
	}
	text, _ := json.Marshal(args)
	return string(text)
}

func (v inspectedImage) printLayers(w io.Writer) error {
	if len(v.Layers) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := newTable("LAYER (DIFF ID)", "FETCHED AS", "SIZE", "ON DISK")
	for _, l := range v.Layers {
		t.add(l.DiffID, short(l.Blob), bytesText(uint64(l.Size)), bytesText(l.Disk))
	}
	return t.print(w)
}

func imageHistoryCommand(a *app) *cobra.Command {
	var whole bool
	cmd := &cobra.Command{
		Use: "history IMAGE", Short: "Show how an image was built", Args: exactly(1),
		ValidArgsFunction: a.completeFirst(images),
		Example:           examples("berth image history --no-trunc docker.io/library/nginx:latest"),
	}
	cmd.Flags().BoolVar(&whole, "no-trunc", false, "do not shorten commands")
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(func(c *client) error {
			d, err := imageDetail(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			steps, err := historyOf(*d)
			if err != nil || *format == formatJSON {
				return printUnless(err, stdout(cmd), steps)
			}
			return printHistory(stdout(cmd), steps, whole, time.Now())
		})
	}
	return cmd
}

func printUnless(err error, w io.Writer, v any) error {
	if err != nil {
		return err
	}
	return printJSON(w, v)
}

// buildStep is one step of an image's history. Layer is empty when it made none.
type buildStep struct {
	Created   *time.Time `json:"created,omitempty"`
	CreatedBy string     `json:"createdBy"`
	Comment   string     `json:"comment,omitempty"`
	Layer     string     `json:"layer,omitempty"` // its diff id
	Size      uint64     `json:"size"`            // bytes on disk
}

// historyOf joins the steps in an image's config with its layers, the last step first. Layers that no step speaks of
// have steps of their own.
func historyOf(d admin.ImageDetail) ([]buildStep, error) {
	var config ocispec.Image
	if err := decodeConfig(&d, &config); err != nil {
		return nil, err
	}
	steps := []buildStep{}
	layers := d.Layers
	for _, h := range config.History {
		s := buildStep{Created: h.Created, CreatedBy: h.CreatedBy, Comment: h.Comment}
		if !h.EmptyLayer && len(layers) > 0 {
			s.Layer, s.Size, layers = layers[0].DiffID, layers[0].Disk, layers[1:]
		}
		steps = append(steps, s)
	}
	for _, l := range layers {
		steps = append(steps, buildStep{Layer: l.DiffID, Size: l.Disk})
	}
	slices.Reverse(steps)
	return steps, nil
}

func printHistory(w io.Writer, steps []buildStep, whole bool, now time.Time) error {
	const most = 60
	t := newTable("CREATED", "LAYER", "SIZE", "CREATED BY", "COMMENT")
	for _, s := range steps {
		created, id, size, by := "-", "-", "0 B", oneLine(s.CreatedBy)
		if s.Created != nil {
			created = age(*s.Created, now)
		}
		if s.Layer != "" {
			id, size = short(s.Layer), bytesText(s.Size)
		}
		if runes := []rune(by); !whole && len(runes) > most {
			by = string(runes[:most-1]) + "…"
		}
		if by == "" {
			by = "-"
		}
		t.add(created, id, size, by, oneLine(s.Comment))
	}
	return t.print(w)
}
