package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/admin"
	"berth/internal/config"
	"berth/internal/host"
)

// How a diagnosis came out.
const (
	fine    = "ok"
	warning = "warn" // Berth works, but not as well as it could
	broken  = "bad"  // pods cannot run
)

// diagnosis is one thing that the doctor looked at.
type diagnosis struct {
	Subject string `json:"subject"`
	Result  string `json:"result"`
	Text    string `json:"text"`
	Remedy  string `json:"remedy,omitempty"`
}

func doctorCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "List what this machine lacks to run pods, and what to do about it", Args: exactly(0),
		Long: "Check the kernel, the cgroups, the runtimes, the CNI plugins and their configuration, the socket, " +
			"the disk and what a kubelet, crictl and kubeadm need. The configuration is that of the running " +
			"daemon or, if none is running, the one with which it would start: that of BERTH_CONFIG, or of " +
			config.DefaultPath + ". The exit code is 1 if pods cannot run.",
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		found := diagnose(cmd.Context(), a)
		var err error
		if *format == formatJSON {
			err = printJSON(stdout(cmd), found)
		} else {
			err = printDiagnoses(stdout(cmd), found)
		}
		if err != nil {
			return err
		}
		for _, d := range found {
			if d.Result == broken {
				return &exitError{code: 1}
			}
		}
		return nil
	}
	return cmd
}

func diagnose(ctx context.Context, a *app) []diagnosis {
	daemon, unreadable := runningDaemon(ctx, a)
	cfg, found := chooseConfig(a, daemon.config, unreadable)
	facts, err := host.Probe()
	if err != nil {
		return append(found, diagnosis{"host", broken, err.Error(), "nothing works without it: is /proc mounted?"})
	}
	if err := facts.ChooseDriver(cfg.CgroupDriver); err != nil {
		found = append(found, diagnosis{"cgroup driver", broken, err.Error(), "change cgroup_driver in the configuration"})
	}
	m := machine{facts: facts, config: cfg, daemon: daemon.info}
	found = append(found, m.user(), kernelDiagnosis(facts.Kernel), userNamespaces(), m.overlay(), m.seccomp(),
		m.apparmor(), m.selinux(), m.cgroups(), cgroupMoves(cfg))
	found = append(found, m.socketFamilies())
	found = append(found, m.runtimes(ctx)...)
	found = append(found, m.monitor(), m.unpacker())
	kubernetes := thisKubeNode(cfg.Socket)
	found = append(found, diagnoseNetwork(cfg.CNI, kubernetes.isNode())...)
	found = append(found, kubernetes.diagnose()...)
	found = append(found, m.disks()...)
	found = append(append(found, diagnoseStorage(cfg), diagnoseLogs(cfg), m.layers(), m.gunzip()), m.verifiers()...)
	of, used := diagnoseDaemon(ctx, a)
	return append(append(found, of...), diagnoseLimits(cfg, used)...)
}

// chooseConfig takes the configuration of the daemon that runs; else what one would start with; else, when that is bad,
// the defaults. The error is of the daemon's, which could not be had.
func chooseConfig(a *app, running *config.Config, err error) (*config.Config, []diagnosis) {
	const subject, remedy = "configuration", "mend the file; berth config --default prints one to start from"
	var found []diagnosis
	if err != nil {
		found = append(found,
			diagnosis{subject, warning, "the daemon's is not to be had, so this is about the file's: " + err.Error(),
				"run the daemon and this command at one version"})
	}
	local, err := localConfig()
	switch {
	case running != nil && err != nil:
		return running,
			append(found, diagnosis{subject, warning, "the daemon runs with a good one, but this one is bad: " + err.Error(),
				remedy + "; it keeps a daemon from starting"})
	case running != nil:
		return running, append(found, diagnosis{subject, fine, "that of the daemon at " + socketPath(a.socket), ""})
	case err != nil:
		return config.Default(), append(found, diagnosis{subject, broken, err.Error(), remedy})
	}
	return local, append(found, diagnosis{subject, fine, "what a daemon would start with: " + localConfigPath(), ""})
}

// running is what the daemon that answers tells about itself; nothing when none does.
type running struct {
	info   admin.InfoResponse
	config *config.Config
}

func runningDaemon(ctx context.Context, a *app) (r running, err error) {
	err = a.with(func(c *client) error {
		info, err := c.node.Info(ctx)
		if isCode(err, codes.Unavailable) {
			return nil
		}
		if err != nil {
			return err
		}
		r.info = *info
		r.config, err = readConfig(info.Config)
		return err
	})
	return r, err
}

func printDiagnoses(w io.Writer, found []diagnosis) error {
	bad, odd := 0, 0
	for _, d := range found {
		switch d.Result {
		case broken:
			bad++
		case warning:
			odd++
		}
		if _, err := fmt.Fprintf(w, "%-4s  %-16s  %s\n", d.Result, d.Subject, d.Text); err != nil {
			return err
		}
		if d.Remedy != "" {
			if _, err := fmt.Fprintf(w, "%24s-> %s\n", "", d.Remedy); err != nil {
				return err
			}
		}
	}
	verdict := "this machine can run pods"
	if bad > 0 {
		verdict = "this machine cannot run pods yet"
	}
	_, err := fmt.Fprintf(w, "\n%s: %d bad, %d to look at\n", verdict, bad, odd)
	return err
}

// diagnoseDaemon asks the daemon, if one answers, what it thinks of itself, and what is used of the limits that all
// share.
func diagnoseDaemon(ctx context.Context, a *app) (found []diagnosis, used []admin.Limit) {
	path := socketPath(a.socket)
	c, err := a.dial()
	if err != nil {
		const remedy = "give the path of a socket, with --socket or BERTH_SOCKET"
		return []diagnosis{{"socket", broken, err.Error(), remedy}}, nil
	}
	defer c.close()
	if _, err := os.Stat(path); absent(err) {
		return []diagnosis{{"socket", warning, "no daemon runs: there is no " + path, `start one with "berth serve"`}}, nil
	}
	status, err := c.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return []diagnosis{{"socket", broken, err.Error(), "its log says why it ended"}}, nil
	}
	found = []diagnosis{{"socket", fine, "a daemon answers at " + path, ""}}
	for _, condition := range status.GetStatus().GetConditions() {
		if !condition.GetStatus() {
			found = append(found, diagnosis{condition.GetType(), broken, condition.GetReason() + ": " + condition.GetMessage(),
				"mend what it names; the daemon notices by itself"})
		}
	}
	info, err := c.node.Info(ctx)
	if err != nil {
		return append(found, diagnosis{"daemon", warning, err.Error(), "run the daemon and this command at one version"}), nil
	}
	if info.Version != a.version {
		found = append(found,
			diagnosis{"daemon", warning, fmt.Sprintf("it is version %s, this command is %s", info.Version, a.version),
				"restart the daemon after an upgrade; pods do not notice"})
	}
	found = append(found, diagnoseNRI(info.NRI)...)
	for _, p := range info.Problems {
		found = append(found, diagnosis{"daemon", warning, problemText(p.Pod, p.Container, p.Step, p.Path, p.Message),
			"mend what it names; it is tried again by itself"})
	}
	return found, info.Limits
}

// diagnoseNRI tells whether plugins can take part, which of them do, and what keeps the others.
func diagnoseNRI(n *admin.NRI) (found []diagnosis) {
	const subject, remedy = "nri", "mend what it names and restart the daemon"
	switch {
	case n == nil: // the daemon is older than this command
		return nil
	case n.Failed != "":
		found = append(found, diagnosis{subject, warning, "off: " + n.Failed, remedy + ", or set nri.enable to false"})
	case !n.On:
		found = append(found, diagnosis{subject, fine, "off: " + n.Off, ""})
	default:
		text := "on, without a socket"
		if n.Socket != "" {
			text = "on, plugins connect at " + n.Socket
		}
		text += fmt.Sprintf("; plugins that take part: %d", n.Plugins)
		if len(n.Names) > 0 {
			text += " (" + strings.Join(n.Names, ", ") + ")"
		}
		found = append(found, diagnosis{subject, fine, text, ""})
	}
	for _, p := range n.Problems {
		found = append(found, diagnosis{subject, warning, p, remedy})
	}
	return found
}

func problemText(pod, container, step, path, message string) string {
	text := ""
	for _, x := range []struct {
		kind, name string
	}{{"pod ", short(pod)}, {"container ", short(container)}, {"step ", step}, {"", path}} {
		if x.name != "" {
			text += x.kind + x.name + ": "
		}
	}
	return text + message
}
