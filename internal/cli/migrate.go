package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"berth/internal/admin"
	"berth/internal/config"
	"berth/internal/containerd"
	"berth/internal/containerd/settings"
	"berth/internal/fail"
)

func migrateCommand(a *app) *cobra.Command {
	cmd := grouped("migrate", "Take over what another runtime has on this node")
	cmd.AddCommand(migrateContainerdCommand(a))
	return cmd
}

// migrateFlags say what is taken over from where, and where to.
type migrateFlags struct {
	root, namespace            string
	config, registries, into   string
	only                       string
	dryRun, overwrite          bool
	rootSet, configSet, regSet bool // it was given
}

// The parts of a migration.
const (
	migrateOnlyImages   = "images"
	migrateOnlySettings = "settings"
)

func migrateContainerdCommand(a *app) *cobra.Command {
	var flags migrateFlags
	cmd := &cobra.Command{
		Use: "containerd", Short: "Take over the settings and images of a containerd", Args: exactly(0),
		Long: "Take over the settings and images of a containerd on this node: the settings become a file in " +
			"conf.d and hosts.toml files of registries, the images are read from its root without being pulled. " +
			"Each setting without a counterpart in Berth is listed with the reason, and what containerd does by " +
			"default and Berth does not is set. Nothing of containerd is " +
			"changed, no existing file is replaced, and what Berth already has is skipped. So the command may " +
			"be repeated, and tried with --dry-run.\n" +
			"\n" +
			"Settings need no daemon, and are taken over before it starts for the first time. Images need a " +
			"running daemon of Berth, and a containerd that is stopped; its pods run on meanwhile.",
		Example: examples("berth migrate containerd --dry-run", "berth migrate containerd --only settings",
			"systemctl stop containerd && berth migrate containerd --only images"),
	}
	f := cmd.Flags()
	f.StringVar(&flags.root, "root", containerd.DefaultRoot, "`directory` of containerd, or of a copy of it")
	f.StringVar(&flags.namespace, "namespace", containerd.DefaultNamespace, "whose images; nerdctl's namespace is "+
		"default, Docker's moby")
	f.StringVar(&flags.config, "config", settings.DefaultPath, "`file` with the settings of containerd")
	f.StringVar(&flags.registries, "registries", settings.DefaultRegistries, "`file` with the registries of k3s "+
		"or RKE2")
	f.StringVar(&flags.into, "into", filepath.Dir(config.DefaultPath), "`directory` of Berth's configuration; the "+
		"environment of its service is in ../default/berth of it")
	f.StringVar(&flags.only, "only", "", "settings or images; the default is both")
	f.BoolVar(&flags.overwrite, "overwrite", false, "replace files that are there already")
	f.BoolVarP(&flags.dryRun, "dry-run", "n", false, "only print what would be taken over")
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions([]string{migrateOnlySettings, migrateOnlyImages},
		cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		flags.rootSet, flags.configSet, flags.regSet = f.Changed("root"), f.Changed("config"), f.Changed("registries")
		return migrateContainerd(cmd, a, flags)
	}
	return cmd
}

func migrateContainerd(cmd *cobra.Command, a *app, flags migrateFlags) error {
	switch flags.only {
	case "", migrateOnlySettings, migrateOnlyImages:
	default:
		return cmd.FlagErrorFunc()(cmd, fmt.Errorf("--only %s: there is settings and images", flags.only))
	}
	p := &placer{out: stdout(cmd), dir: filepath.Clean(flags.into), dryRun: flags.dryRun, overwrite: flags.overwrite}
	if flags.only != migrateOnlyImages {
		if err := migrateSettings(cmd, p, flags); err != nil {
			return err
		}
	}
	if flags.only != migrateOnlySettings {
		err := a.with(func(c *client) error { return migrateImages(cmd, c, p, flags) })
		if err != nil {
			return err
		}
	}
	return p.end()
}

// imageMigration takes images from a root.
type imageMigration struct {
	client *client
	root   *containerd.Root
	out    io.Writer
	watch  io.Writer
	dryRun bool
	ids    map[string]string // of the images that the daemon has, by their names
}

func migrateImages(cmd *cobra.Command, c *client, p *placer, flags migrateFlags) error {
	ctx := cmd.Context()
	root, err := containerd.Open(flags.root)
	if err != nil {
		return fmt.Errorf("the root of containerd: %w; --root names another", err)
	}
	defer root.Close()
	images, err := root.Images(flags.namespace)
	if errors.Is(err, containerd.ErrLocked) {
		return fail.New(errdefs.ErrFailedPrecondition, "%w; stop it (systemctl stop containerd; its pods run on), or "+
			"stop it for as long as it takes to copy %s, and name the copy with --root", err,
			filepath.Clean(flags.root))
	}
	if err != nil {
		return fmt.Errorf("the images of containerd: %w", err)
	}
	m := &imageMigration{client: c, root: root, out: stdout(cmd), watch: stderr(cmd), dryRun: flags.dryRun}
	if err := m.survey(ctx); isCode(err, codes.Unavailable) {
		return fmt.Errorf("images need a daemon: %w", err)
	} else if err != nil {
		return err
	}
	if err := pin(p, images); err != nil {
		return err
	}
	failed := 0
	for i := range images {
		did, err := m.take(ctx, &images[i])
		if endsAll(ctx, err) {
			return fmt.Errorf("take over %s: %w", visibleLine(images[i].Name()), err)
		}
		if err != nil {
			failed++
			did = "not taken over: " + err.Error()
		}
		fmt.Fprintf(m.out, "%s: %s\n", visibleLine(images[i].Name()), visibleLine(did))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d images were not taken over; they are pulled when a pod needs them", failed,
			len(images))
	}
	if len(images) == 0 {
		fmt.Fprintf(m.out, "the namespace %s has no images\n", flags.namespace)
	}
	return nil
}

// endsAll reports whether it makes no sense to go on.
func endsAll(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || isCode(err, codes.Unavailable) || isCode(err, codes.Unimplemented))
}

// survey asks which images the daemon has. A dry run does without a daemon.
func (m *imageMigration) survey(ctx context.Context) error {
	m.ids = map[string]string{}
	have, err := m.client.node.Images(ctx, &admin.ImagesRequest{})
	if m.dryRun && isCode(err, codes.Unavailable) {
		fmt.Fprintln(m.watch, "berth: no daemon runs here, so what it has already is not known")
		return nil
	}
	for _, d := range have {
		for _, name := range append(slices.Clone(d.Tags), d.Digests...) {
			m.ids[name] = d.ID
		}
	}
	return err
}

// take takes one image over, and says what it did.
func (m *imageMigration) take(ctx context.Context, img *containerd.Image) (did string, err error) {
	if len(img.Tags)+len(img.Digests) == 0 {
		return "left: no pod can ask for it, since it has no name of a registry", nil
	}
	content, err := m.root.Content(img)
	if err != nil {
		return "", err
	}
	var names, others []string
	there := true
	for _, name := range content.Names(img) {
		switch id := m.ids[name]; id {
		case content.ID.String(), content.Manifest.String():
			names = append(names, name)
		case "":
			names, there = append(names, name), false
		default:
			others = append(others, name)
		}
	}
	note := ""
	if len(others) > 0 {
		note = "; Berth has another image of the name " + strings.Join(others, ", ")
	}
	switch {
	case len(names) == 0:
		return "left" + note, nil
	case there:
		return "is here already" + note, nil
	case m.dryRun:
		return fmt.Sprintf("would be taken over, %s", bytesText(uint64(content.Size()))) + note, nil
	}
	if err := m.send(ctx, content, names); err != nil {
		return "", err
	}
	for _, name := range names {
		m.ids[name] = content.ID.String()
	}
	return fmt.Sprintf("taken over, %s", bytesText(uint64(content.Size()))) + note, nil
}

// send has the daemon import an archive of the image, which is written while it is read.
func (m *imageMigration) send(ctx context.Context, content *containerd.Content, names []string) error {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = r.Close() }() // ends the writer when the daemon wants no more
	go func() { _ = w.CloseWithError(m.root.WriteArchive(ctx, w, content, names)) }()
	var archive io.Reader = r
	p := newProgress(io.Discard)
	if watch := newProgress(m.watch); watch.onTerminal() {
		p = watch
		archive = &sentReader{r: r, total: content.Size(), tell: p.event}
	}
	_, err := m.client.node.Import(ctx, archive, p.event)
	p.end()
	return err
}
