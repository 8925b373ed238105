package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
)

// statsView is how usage is shown.
type statsView struct {
	client   *client
	out      io.Writer
	format   string
	pods     bool     // pods, not containers
	busiest  bool     // in the order of what they use
	most     int      // rows; 0 is all
	words    []string // only these
	interval time.Duration
	once     bool
}

func (a *app) statsCommand() *cobra.Command {
	v := statsView{}
	cmd := &cobra.Command{
		Use: "stats [CONTAINER...]", Aliases: []string{"statsp"}, Short: "Show the resource usage of containers or pods",
		Args: atLeast(0),
		Long: "Show the resource usage of containers, or of pods with --pods: a table that is refreshed until " +
			"interrupted. Processor time is in percent of one core. Memory is the working set, by which limits " +
			"and evictions go. With -o json it is printed once, as CRI defines it.",
		Example: examples("berth stats", "berth stats --no-stream web", "berth stats --pods",
			"berth stats -o json"),
		ValidArgsFunction: a.complete(all(containersWhere(func(*runtimeapi.Container) bool { return true }))),
	}
	cmd.Flags().BoolVar(&v.once, "no-stream", false, "print it once")
	cmd.Flags().BoolP("all", "a", false, "also those that have ended, which use nothing")
	_ = cmd.Flags().MarkHidden("all")
	cmd.Flags().BoolVarP(&v.pods, "pods", "p", false, "show pods; arguments name pods")
	return a.statsFlags(cmd, &v)
}

func (a *app) topCommand() *cobra.Command {
	v := statsView{busiest: true, most: 30}
	cmd := &cobra.Command{
		Use: "top [CONTAINER]", Short: "Show the containers or pods that use most, or the processes of a container",
		Args: takes(0, 1),
		Long: "Show the containers, or pods with --pods, that use most processor time, refreshed until " +
			"interrupted. With a name, list the processes of that container once, with their pids on this " +
			"machine.",
		Example:           examples("berth top", "berth top --pods -n 5", "berth top web"),
		ValidArgsFunction: a.completeFirst(runningContainers),
	}
	cmd.Flags().BoolVarP(&v.pods, "pods", "p", false, "pods")
	cmd.Flags().BoolVar(&v.once, "no-stream", false, "print it once")
	cmd.Flags().IntVarP(&v.most, "number", "n", v.most, "show at most this `many`; 0 is all")
	a.statsFlags(cmd, &v)
	most := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return most(cmd, args)
		}
		return a.with(func(c *client) error { return showProcesses(cmd, c, args[0]) })
	}
	return cmd
}

func (a *app) statsFlags(cmd *cobra.Command, v *statsView) *cobra.Command {
	format := outputFlag(cmd)
	cmd.Flags().DurationVar(&v.interval, "interval", 2*time.Second, "`time` between two refreshes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if v.interval < 100*time.Millisecond {
			return wrongUse(cmd, fmt.Errorf("--interval %v: at least 100ms", v.interval))
		}
		if v.most < 0 {
			return wrongUse(cmd, fmt.Errorf("--number %d: is negative", v.most))
		}
		v.out, v.format, v.words = stdout(cmd), *format, args
		v.pods = v.pods || cmd.CalledAs() == "statsp"
		return a.with(func(c *client) error {
			v.client = c
			return v.show(cmd.Context())
		})
	}
	return cmd
}

func (v *statsView) show(ctx context.Context) error {
	if v.format == formatJSON {
		return v.json(ctx)
	}
	was, err := v.look(ctx)
	for err == nil {
		now := was
		if !v.once || slices.ContainsFunc(was, func(r statsRow) bool { return !r.rated }) {
			if !v.once {
				err = v.draw(now)
			}
			if err == nil {
				now, err = v.lookAgain(ctx, was)
			}
		}
		if ctx.Err() != nil {
			return nil // interrupted, which is how this ends
		}
		if err == nil && v.once {
			return v.draw(now)
		}
		was = now
	}
	return err
}

// lookAgain waits a little and tells the rates since then.
func (v *statsView) lookAgain(ctx context.Context, was []statsRow) ([]statsRow, error) {
	wait := v.interval
	if v.once {
		wait = min(wait, time.Second)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(wait):
	}
	now, err := v.look(ctx)
	for i := range now {
		j := slices.IndexFunc(was, func(r statsRow) bool { return r.id == now[i].id })
		if j >= 0 && now[i].at > was[j].at && now[i].used >= was[j].used {
			now[i].cores, now[i].rated = float64(now[i].used-was[j].used)/float64(now[i].at-was[j].at), true
		}
	}
	return now, err
}

func (v *statsView) draw(rows []statsRow) error {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b statsRow) int {
		if v.busiest && a.cores != b.cores {
			return cmp.Compare(b.cores, a.cores)
		}
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.name, b.name), cmp.Compare(a.id, b.id))
	})
	if v.most > 0 {
		rows = rows[:min(len(rows), v.most)]
	}
	head := []string{"CONTAINER", "NAME", "POD", "CPU", "MEMORY", "LIMIT", "SWAP", "DISK", "FILES"}
	if v.pods {
		head = []string{"POD", "NAME", "NAMESPACE", "CPU", "MEMORY", "PROCESSES", "RECEIVED", "SENT", "DISK"}
	}
	t := newTable(head...)
	for _, r := range rows {
		t.add(append([]string{short(r.id), r.name, r.place, r.cpu(), r.memory}, r.rest...)...)
	}
	if terminal := terminalOf(v.out); !v.once && terminal != nil && os.Getenv("TERM") != "dumb" {
		if width, height, err := term.GetSize(int(terminal.Fd())); err == nil {
			return drawOn(v.out, frame(t.visible().fitted(width), width, height))
		}
	}
	return t.print(v.out)
}

// frame draws lines in the place of what a terminal shows: as many, and as much of each, as it has room for.
func frame(lines []string, width, height int) string {
	if room := max(height-1, 2); len(lines) > room { // the cursor stands in the last
		lines = append(lines[:room-1:room-1], fmt.Sprintf("… %d more", len(lines)-room+1))
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	for _, line := range lines {
		if runes := []rune(line); width > 0 && len(runes) > width {
			line = string(runes[:width])
		}
		// after a line as long as the terminal is wide, clearing would take its last character
		b.WriteString("\x1b[K" + line + "\n")
	}
	b.WriteString("\x1b[J") // and nothing below
	return b.String()
}

// statsRow is one container or pod.
type statsRow struct {
	id, name, place string
	used            uint64 // processor time in nanoseconds, until at
	at              int64
	cores           float64
	rated           bool // cores is known
	memory          string
	rest            []string
}

func (r *statsRow) cpu() string {
	if !r.rated {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", r.cores*100)
}

func (r *statsRow) processor(u *runtimeapi.CpuUsage) {
	r.used, r.at = u.GetUsageCoreNanoSeconds().GetValue(), u.GetTimestamp()
	if n := u.GetUsageNanoCores(); n != nil {
		r.cores, r.rated = float64(n.Value)/1e9, true
	}
}

func (v *statsView) look(ctx context.Context) ([]statsRow, error) {
	n, err := v.client.survey(ctx)
	if err != nil {
		return nil, err
	}
	if v.pods {
		list, err := v.podStats(ctx, n)
		return rowsOf(list, podRow), err
	}
	list, err := v.containerStats(ctx, n)
	if err != nil {
		return nil, err
	}
	limits := map[string]admin.ContainerStorage{}
	if info, err := v.client.node.Info(ctx); err == nil { // else the limits are not told
		for _, c := range info.Storage {
			limits[c.ID] = c
		}
	}
	return rowsOf(list, func(s *runtimeapi.ContainerStats) statsRow { return containerRow(s, n, limits) }), nil
}

func rowsOf[T any](list []T, row func(T) statsRow) []statsRow {
	rows := make([]statsRow, 0, len(list))
	for _, s := range list {
		rows = append(rows, row(s))
	}
	return rows
}

func (v *statsView) containerStats(ctx context.Context, n *node) ([]*runtimeapi.ContainerStats, error) {
	ids, err := v.named("container", n.containerSubjects())
	if err != nil {
		return nil, err
	}
	resp, err := v.client.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	return only(resp.GetStats(), ids, func(s *runtimeapi.ContainerStats) string { return s.GetAttributes().GetId() }), err
}

func (v *statsView) podStats(ctx context.Context, n *node) ([]*runtimeapi.PodSandboxStats, error) {
	ids, err := v.named("pod", n.podSubjects())
	if err != nil {
		return nil, err
	}
	resp, err := v.client.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	return only(resp.GetStats(), ids, func(s *runtimeapi.PodSandboxStats) string { return s.GetAttributes().GetId() }), err
}

// named gives the ids of what was named, nil for everything.
func (v *statsView) named(kind string, all []subject) (ids []string, err error) {
	for _, word := range v.words {
		id, err := pick(kind, word, all)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func only[T any](list []T, ids []string, id func(T) string) []T {
	if ids == nil {
		return list
	}
	return slices.DeleteFunc(list, func(s T) bool { return !slices.Contains(ids, id(s)) })
}

func containerRow(s *runtimeapi.ContainerStats, n *node, limits map[string]admin.ContainerStorage) statsRow {
	r := statsRow{id: s.GetAttributes().GetId(), name: s.GetAttributes().GetMetadata().GetName(), place: "-"}
	if m := n.podOf(r.id).GetMetadata(); m != nil {
		r.place = m.GetNamespace() + "/" + m.GetName()
	}
	r.processor(s.GetCpu())
	limit := "-"
	r.memory = amount(s.GetMemory().GetWorkingSetBytes())
	if free := s.GetMemory().GetAvailableBytes(); free != nil {
		limit = bytesText(free.Value + s.GetMemory().GetWorkingSetBytes().GetValue())
	}
	files := "-"
	if i := s.GetWritableLayer().GetInodesUsed(); i != nil {
		files = fmt.Sprint(i.Value)
	}
	disk := amount(s.GetWritableLayer().GetUsedBytes())
	if most := limits[r.id].LimitBytes; most > 0 {
		disk += " of " + bytesText(most)
	}
	if most := limits[r.id].LimitInodes; most > 0 {
		files += fmt.Sprint(" of ", most)
	}
	r.rest = []string{limit, amount(s.GetSwap().GetSwapUsageBytes()), disk, files}
	return r
}

func podRow(s *runtimeapi.PodSandboxStats) statsRow {
	m, linux := s.GetAttributes().GetMetadata(), s.GetLinux()
	r := statsRow{id: s.GetAttributes().GetId(), name: m.GetName(), place: m.GetNamespace()}
	r.processor(linux.GetCpu())
	r.memory = amount(linux.GetMemory().GetWorkingSetBytes())
	received, sent, tasks := "-", "-", "-"
	if net := linux.GetNetwork(); net != nil {
		var rx, tx uint64
		for _, i := range interfaces(net) {
			rx, tx = rx+i.GetRxBytes().GetValue(), tx+i.GetTxBytes().GetValue()
		}
		received, sent = bytesText(rx), bytesText(tx)
	}
	if p := linux.GetProcess().GetProcessCount(); p != nil {
		tasks = fmt.Sprint(p.Value)
	}
	var disk uint64
	for _, c := range linux.GetContainers() {
		disk += c.GetWritableLayer().GetUsedBytes().GetValue()
	}
	r.rest = []string{tasks, received, sent, bytesText(disk)}
	return r
}

// interfaces is each interface once. A daemon may tell the default one also among the others.
func interfaces(net *runtimeapi.NetworkUsage) []*runtimeapi.NetworkInterfaceUsage {
	all := net.GetInterfaces()
	isDefault := func(i *runtimeapi.NetworkInterfaceUsage) bool {
		return i.GetName() == net.GetDefaultInterface().GetName()
	}
	if net.GetDefaultInterface() == nil || slices.ContainsFunc(all, isDefault) {
		return all
	}
	return append([]*runtimeapi.NetworkInterfaceUsage{net.DefaultInterface}, all...)
}

// amount is a number of bytes that may not be known.
func amount(n *runtimeapi.UInt64Value) string {
	if n == nil {
		return "-"
	}
	return bytesText(n.Value)
}

// json shows it once.
func (v *statsView) json(ctx context.Context) error {
	n, err := v.client.survey(ctx)
	if err != nil {
		return err
	}
	if v.pods {
		list, err := v.podStats(ctx, n)
		if err != nil {
			return err
		}
		return printProto(v.out, &runtimeapi.ListPodSandboxStatsResponse{Stats: list})
	}
	list, err := v.containerStats(ctx, n)
	if err != nil {
		return err
	}
	return printProto(v.out, &runtimeapi.ListContainerStatsResponse{Stats: list})
}
