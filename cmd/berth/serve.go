package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"berth/internal/admin"
	"berth/internal/callers"
	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/limit"
	"berth/internal/runtime"
)

// serveCommand is the daemon.
func serveCommand() *cobra.Command {
	var f config.Flags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Example: "  berth serve\n  berth serve --log-level debug\n" +
			"  berth serve --root /srv/test/root --state /run/berth-test --socket /run/berth-test.sock   # beside another one",
		Long: "Run the daemon. It serves CRI, and Berth's own small service for the command line, on a unix socket.\n" +
			"SIGTERM ends the daemon and leaves the pods running; the next start finds them again.\n" +
			"SIGHUP, like `berth reload`, puts a changed configuration in force and touches no pod.",
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ownProcess()
			boundLastError(cmd)
			f := flagsFrom(cmd, f)
			cfg, err := config.Load(f)
			if err != nil {
				return err
			}
			logOfLibraries(cfg.LogFormat)
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, unix.SIGHUP)
			setGCPercent()
			return serve(ctx, cfg, f, hup)
		},
	}
	d, path := config.Default(), os.Getenv("BERTH_CONFIG")
	if path == "" {
		path = config.DefaultPath
	}
	fl := cmd.Flags()
	fl.StringVar(&f.Path, "config", path, "configuration `file`; drop-ins are in conf.d beside it (environment: "+
		"BERTH_CONFIG)")
	fl.StringVar(&f.Root, "root", "", "`directory` for what outlives a boot (unless configured: "+d.Root+")")
	fl.StringVar(&f.State, "state", "", "`directory` for what dies with a boot (unless configured: "+d.State+")")
	fl.StringVar(&f.LogLevel, "log-level", "", "`level`: debug, info, warn or error (unless configured: "+d.LogLevel+")")
	return cmd
}

// ownProcess sets what this process was given and hands on to all that it starts, runtimes and plugins among them, as
// they need it.
//
// Files and devices of pods are made with the modes that users in containers need. A umask that a shell or a unit
// (UMask=) has for other reasons would take them away.
//
// CNI plugins look for iptables and the like in PATH, which lacks /usr/sbin or is not there at all where the daemon is
// started by cron, an init script or a supervisor.
func ownProcess() {
	unix.Umask(0o022)
	_ = os.Setenv("PATH", withSystemPath(os.Getenv("PATH")))
}

// withSystemPath adds to a PATH the directories of systemd's default that it has not.
func withSystemPath(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// setGCPercent halves GOGC: a daemon has little on its heap, so collecting more often is cheap, and lowers the peak of
// a pull by a few MiB. GOGC in the environment has the last word.
func setGCPercent() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// flagsFrom is what the command line says, and the environment that its help names.
func flagsFrom(cmd *cobra.Command, f config.Flags) config.Flags {
	f.PathSet = cmd.Flags().Changed("config") || os.Getenv("BERTH_CONFIG") != ""
	if s := cmd.Flags().Lookup("socket"); s != nil && (s.Changed || os.Getenv("BERTH_SOCKET") != "") {
		f.Socket = strings.TrimPrefix(s.Value.String(), "unix://")
	}
	return f
}

// serve runs until ctx ends. The socket is there, and answers Unavailable, before anything is read.
func serve(ctx context.Context, cfg *config.Config, flags config.Flags, hup <-chan os.Signal) error {
	root, err := lockRoot(cfg.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	state, err := lockState(cfg.State)
	if err != nil {
		return err
	}
	defer state.Close()
	images, err := lockImages(cfg.ImagesRoot())
	if err != nil {
		return err
	}
	defer images.Close()
	listener, err := listenTo(cfg.Socket)
	if err != nil {
		return err
	}
	defer listener.name.Remove()
	var ready atomic.Bool
	n := newNode(cfg)
	defer n.logWriter.Flush(lastWords)
	keepCrashes(n)
	unary, stream := n.interceptors(ready.Load)
	sized, sizedStream := cri.Interceptors(func() cri.Sizes { return sizes(n.settings.config.Load()) })
	g := grpc.NewServer(append(n.callers.Options(),
		grpc.ChainUnaryInterceptor(unary, sized), grpc.ChainStreamInterceptor(stream, sizedStream),
		grpc.MaxRecvMsgSize(int(limit.Message.Limit)), grpc.MaxSendMsgSize(int(limit.Message.Limit)))...)
	n.criServer.Register(g)
	svc := &service{}
	admin.Register(g, svc)
	admin.RegisterDebug(g, newDebugger(n))
	served := make(chan error, 1)
	go func() { served <- g.Serve(n.callers.Listener(listener)) }()
	if err := n.open(ctx); err != nil {
		g.Stop()
		return err
	}
	reloader := n.newReloader(flags)
	svc.daemonService = n.daemonService(reloader)
	svc.imageService = &imageService{n.images, n.pods}
	svc.processService = &processService{pods: n.pods, streams: n.streamNode, background: n.background, log: n.log}
	serveCRIO(n, g) // before a kubelet may start that waits for this daemon: its cAdvisor looks once
	n.recover(func() { ready.Store(true) })
	watched, unwatch := context.WithCancel(ctx)
	n.background.running.Go(func() { reloader.reloadOn(watched, hup) })
	n.background.running.Go(func() {
		n.supervisor.Watch(watched, func(ctx context.Context) error { return answers(ctx, cfg.Socket) })
	})
	select {
	case err = <-served:
	case <-ctx.Done():
		n.log.Info("the daemon ends; the pods run on")
		n.supervisor.Stopping("The daemon ends; the pods run on")
	}
	unwatch()
	runtime.Leave(n.driver)
	g.Stop() // what is under way is cut off: a caller asks the next daemon again
	runtime.HandOver(n.driver)
	return errors.Join(err, n.close())
}

// sizes is what the configuration lets a request of CRI be.
func sizes(cfg *config.Config) cri.Sizes {
	l := cfg.Limits
	return cri.Sizes{Bytes: l.RequestBytes, Entries: int64(l.RequestEntries), Labels: l.LabelBytes}
}

// newCallers counts what the clients of the socket hold.
func newCallers(l config.Limits, log *slog.Logger) *callers.Callers {
	c := callers.New(callers.Limits{
		Connections: int64(l.Connections), Calls: int64(l.Calls), Execs: int64(l.Execs), Pulls: int64(l.Pulls),
	})
	c.Log = log
	return c
}
