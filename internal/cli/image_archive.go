package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

func imageImportCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "import FILE|-", Short: "Import the images of an archive (OCI layout or docker save)",
		Args: exactly(1),
		Long: "Import the images of an archive: an OCI layout, or the output of docker save, uncompressed or " +
			"compressed with gzip or zstd.",
		Example: examples("berth image import app.tar", "docker save app:v1 | berth image import -"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(func(c *client) error { return importImages(cmd, c, args[0]) })
		},
	}
}

func importImages(cmd *cobra.Command, c *client, name string) error {
	archive, size := cmd.InOrStdin(), int64(0)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("import: %w", err)
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		archive = f
	}
	p := newProgress(stderr(cmd))
	if p.onTerminal() {
		archive = &sentReader{r: archive, total: size, tell: p.event}
	}
	imported, err := c.node.Import(cmd.Context(), archive, p.event)
	p.end()
	if err != nil {
		return fmt.Errorf("import %s: %w", name, err)
	}
	if len(imported) == 0 {
		return fmt.Errorf("import %s: the archive holds no image", name)
	}
	for _, img := range imported {
		if err := printImage(stdout(cmd), img); err != nil {
			return err
		}
	}
	return nil
}

// sentReader tells how much of an archive was read, now and then.
type sentReader struct {
	r           io.Reader
	done, total int64
	tell        func(admin.PullEvent)
	shown       time.Time
}

func (s *sentReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.done += int64(n)
	if err != nil || time.Since(s.shown) > 100*time.Millisecond {
		s.shown = time.Now()
		s.tell(admin.PullEvent{Layer: "archive", Phase: "sending", Done: s.done, Total: max(s.total, s.done)})
	}
	return n, err
}

func imageExportCommand(a *app) *cobra.Command {
	var req admin.ExportRequest
	var output string
	cmd := &cobra.Command{
		Use: "export IMAGE...", Short: "Write images to an archive", Args: atLeast(1), ValidArgsFunction: a.complete(images),
		Long: "Write images to one archive that berth image import, docker load and other tools read. The images " +
			"keep their ids. An image that is named by a tag has only this tag in the archive; one that is " +
			"named otherwise has all its tags.",
		Example: examples("berth image export -o app.tar docker.io/library/nginx:latest",
			"berth image export docker.io/library/nginx:latest | ssh other berth image import -"),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "-", "`file` to write; - is standard output")
	cmd.Flags().StringVar(&req.Format, "format", "oci", "oci (a layout, with what docker load needs beside it) or "+
		"docker (as docker save wrote once)")
	cmd.Flags().BoolVar(&req.Compress, "compress", false, "gzip the layers")
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{"oci", "docker"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if req.Format != "oci" && req.Format != "docker" {
			return cmd.FlagErrorFunc()(cmd, fmt.Errorf("--format %s: there is oci and docker", req.Format))
		}
		return a.with(func(c *client) error { return exportImages(cmd, c, output, req, args) })
	}
	return cmd
}

func exportImages(cmd *cobra.Command, c *client, output string, req admin.ExportRequest, words []string) error {
	for _, word := range words {
		ref, err := imageReference(cmd.Context(), c, word)
		if err != nil {
			return err
		}
		req.Images = append(req.Images, ref)
	}
	if output != "-" {
		return toFile(output, func(w io.Writer) error { return exportArchive(cmd.Context(), c, &req, w, stderr(cmd)) })
	}
	if terminalOf(stdout(cmd)) != nil {
		return errors.New("an archive is nothing for a terminal: use --output FILE, or pipe it somewhere")
	}
	return exportArchive(cmd.Context(), c, &req, stdout(cmd), stderr(cmd))
}

// imageReference is the image as the daemon is asked for it: as the person said where the daemon understands that, so
// that it knows whether a tag was meant; else its id.
func imageReference(ctx context.Context, c *client, word string) (string, error) {
	img, err := c.image(ctx, word)
	if err != nil {
		return "", err
	}
	same, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: word}})
	if err == nil && same.GetImage().GetId() == img.GetId() {
		return word, nil
	}
	return img.GetId(), nil
}

// exportArchive writes an archive to w, and its progress to watch, if there is one.
func exportArchive(ctx context.Context, c *client, req *admin.ExportRequest, w, watch io.Writer) error {
	var tell func(admin.PullEvent)
	if p := newProgress(watch); p.onTerminal() {
		defer p.end()
		tell = p.event
	}
	return c.node.Export(ctx, req, w, tell)
}

// toFile lets write fill a file. It has its name only when it is whole; what is no regular file is written as it is.
func toFile(name string, write func(io.Writer) error) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	part := filepath.Join(filepath.Dir(name), fmt.Sprintf(".%s.part-%d", filepath.Base(name), os.Getpid()))
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	err = write(f)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		_ = os.Remove(part)
	}
	return err
}
