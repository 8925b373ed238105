package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/fail"
)

// What Docker, nerdctl and crictl have and Berth has not is answered with what does the same here, or with why nothing
// does.

// insteadOf is what does the same as a command that Berth lacks.
var insteadOf = map[string]string{
	"build":       "images are built elsewhere, as with buildah or docker build; berth load takes them in",
	"builder":     "images are built elsewhere, as with buildah or docker build; berth load takes them in",
	"buildx":      "images are built elsewhere, as with buildah or docker build; berth load takes them in",
	"checkpoint":  "Berth does not write the state of containers to files yet",
	"commit":      "an image is not made of a container: berth cp has its files, and images are built elsewhere",
	"compose":     "Berth has pods: berth run, then berth run --pod NAME for each container beside it, or a kubelet",
	"create":      "berth run -d makes a container and starts it; crictl create has the raw request",
	"ctr":         "Berth has no commands behind that name; berth --help has all there are",
	"diff":        "berth cp has the files of a container",
	"export":      "berth cp NAME:/ - writes the files of a container as a tar archive; berth save is for images",
	"imagefsinfo": "berth system df",
	"manifest":    "berth image inspect",
	"network":     "networks are CNI configurations, by default in /etc/cni/net.d; berth doctor tells which is used",
	"pause":       "nothing pauses a container; berth update --cpus 0.01 has it nearly stand still",
	"push":        "berth save -o FILE IMAGE writes an archive, which skopeo copy brings to a registry",
	"rename":      "a name stays as it is: berth rm, then berth run --name",
	"runp":        "berth run makes a pod and a container in it; crictl runp has the raw request",
	"search":      "registries are searched on their web pages",
	"swarm":       "Berth runs the pods of one node; Kubernetes has the others",
	"unpause":     "nothing pauses a container",
	"volume":      "what is to stay is a directory of this machine: berth run -v /srv/data:/data",
}

// insteadOfFlag is what does the same as a flag that Berth lacks: by command and flag, or by flag for all commands.
var insteadOfFlag = map[string]string{
	"run add-host":       "mount a file of your own: -v ./hosts:/etc/hosts:ro",
	"run attach":         "without -d the output is shown anyway, and -i passes the input on",
	"run cgroup-parent":  "cgroups are the daemon's; berth inspect tells which a container is in",
	"run cidfile":        "-d prints the id",
	"run gpus":           "devices have names of CDI: --device nvidia.com/gpu=all, as docs/devices.md tells",
	"run health-cmd":     "Berth has no health checks of its own; a kubelet has probes, and berth exec runs a command",
	"run init":           "--pid pod gives the pod an init, which clears away what has ended",
	"run ip":             "addresses are the network plugin's; berth pods tells them",
	"run link":           "containers that belong together share a pod: --pod NAME, and localhost leads to the others",
	"run log-driver":     "logs are files as a kubelet has them; berth logs shows them, --log-dir says where they are",
	"run log-opt":        "logs are files as a kubelet has them; --log-rate and --log-burst limit them",
	"run mac-address":    "addresses are the network plugin's",
	"run network-alias":  "containers that belong together share a pod: --pod NAME, and localhost leads to the others",
	"run stop-timeout":   "berth stop -t SECONDS says how long it may take",
	"run userns":         "user namespaces are for pods of a kubelet (hostUsers: false)",
	"run volumes-from":   "name the same directories: -v HOST:CONTAINER",
	"start attach":       "berth logs -f shows what it prints",
	"start a":            "berth logs -f shows what it prints",
	"attach sig-proxy":   "^C goes to a container with a terminal, and leaves one without",
	"attach detach-keys": "^P ^Q leaves",
	"cp archive":         "owners are left out; berth exec NAME chown sets them",
	"cp a":               "owners are left out; berth exec NAME chown sets them",
	"prune filter":       "--older-than 24h leaves what was pulled since",
	"rmi prune":          "berth image prune --all",
	"rmi q":              "berth image prune --all",
	"rmi all":            "berth image prune --all",
	"rmi a":              "berth image prune --all",
	"events since":       "events are shown as they happen; the daemon's log has what was",
	"events until":       "events are shown as they happen; the daemon's log has what was",
	"events filter":      "events are shown as they happen, for grep and jq",
	"events f":           "events are shown as they happen, for grep and jq",
	"exec privileged":    "a command has what its container has: berth run --privileged",
	"exec detach-keys":   "a command has no way out but its end",
	"update restart":     "the policy is said with berth run, and stays",
	"ps size":            "berth stats --no-stream has what a container wrote to its disk",
	"inspect format":     "berth inspect prints JSON, for jq: berth inspect web | jq -r .status.state",
	"inspect f":          "berth inspect prints JSON, for jq: berth inspect web | jq -r .status.state",
	"inspect output":     "berth inspect prints JSON",
	"inspect o":          "berth inspect prints JSON",
	"inspect size":       "berth stats --no-stream has what a container wrote to its disk",
	"pull all-tags":      "each tag is pulled by its name",
	"login get-login":    "credentials are not shown",
	"namespace":          "Berth has one list of containers; ps and pods have --namespace for those of Kubernetes",
	"n":                  "Berth has one list of containers; ps and pods have --namespace for those of Kubernetes",
	"host":               "--socket names the daemon, or BERTH_SOCKET",
	"H":                  "--socket names the daemon, or BERTH_SOCKET",
	"runtime-endpoint":   "--socket names the daemon, or BERTH_SOCKET",
	"r":                  "--socket names the daemon, or BERTH_SOCKET",
}

// subcommand refuses what is no command of cmd.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), args[0])
	if advice := insteadOf[args[0]]; advice != "" && !cmd.HasParent() {
		return fail.New(errdefs.ErrInvalidArgument, "%s: %s", text, advice)
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		slices.Sort(near)
		return wrongUse(cmd, fmt.Errorf("%s; did you mean %s?", text, strings.Join(near, " or ")))
	}
	return wrongUse(cmd, errors.New(text))
}

// foreignFlag says what to do without a flag that Berth lacks; "" for an unknown one.
func foreignFlag(cmd *cobra.Command, err error) string {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.GetFlag().Shorthand == "n" && invalid.GetFlag().Value.Type() == "int" {
		return insteadOfFlag["n"] // it is nerdctl's
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	name := unknown.GetSpecifiedName()
	if advice := insteadOfFlag[cmd.Name()+" "+name]; advice != "" {
		return advice
	}
	return insteadOfFlag[name]
}
