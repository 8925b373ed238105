// Command demo shows a pod live, survive its daemon and die. It makes everything it needs, on a root of its own and in
// a network of its own, and leaves nothing behind, also when it is interrupted.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

const imageName = "demo.test/web:v1"

func main() {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "The demo makes namespaces, mounts and cgroups: run it as root (sudo make demo).")
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "\nThe demo ended early:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	began := time.Now()
	s, err := open()
	if err != nil {
		return err
	}
	for _, scene := range []func(*show) error{
		(*show).importImage, (*show).runPod, (*show).lookInside, (*show).killDaemon, (*show).restart, (*show).remove,
	} {
		if err == nil {
			err = scene(s)
		}
		if err == nil {
			err = ctx.Err()
		}
	}
	if e := s.n.Close(); e != nil {
		return fmt.Errorf("clean up: %w (while: %v)", e, err)
	}
	if err == nil {
		say("Done in %s. No process, mount, namespace, address, cgroup or file is left.",
			time.Since(began).Round(100*time.Millisecond))
	}
	return err
}

// show is what the scenes share.
type show struct {
	n       *node.Node
	ip, pod string
	ctr     string
	pid     int
}

func say(format string, args ...any) {
	fmt.Printf("\n"+format+"\n", args...)
}

// open starts a daemon. crun is preferred: it is the faster one.
func open() (*show, error) {
	runtime := node.Runc
	if _, err := exec.LookPath(node.Crun); err == nil {
		runtime = node.Crun
	}
	began := time.Now()
	n, err := node.Open(node.Options{Runtime: runtime})
	if err != nil {
		return nil, err
	}
	say("A Berth daemon now serves on %s, with %s (ready after %s).\nIts root, state and network are its own: nothing "+
		"here touches the rest of this machine.",
		n.Socket, runtime, time.Since(began).Round(time.Millisecond))
	return &show{n: n}, nil
}

// berth runs a command of the command line, and shows it and what it prints.
func (s *show) berth(args ...string) (string, error) {
	fmt.Printf("  $ berth %s\n", strings.Join(args, " "))
	out := new(strings.Builder)
	cmd := s.n.Command(args...)
	cmd.Stdout, cmd.Stderr = out, out
	err := s.n.Space.Run(cmd)
	for _, line := range strings.Split(strings.TrimRight(out.String(), "\n"), "\n") {
		fmt.Printf("    %s\n", line)
	}
	if err != nil {
		return "", fmt.Errorf("berth %s: %w", args[0], err)
	}
	return out.String(), nil
}

func (s *show) importImage() error {
	img, err := fixture.Web()
	if err != nil {
		return err
	}
	archive := s.n.Dir + "/web.tar"
	if err := fixture.WriteOCI(archive, imageName, img); err != nil {
		return err
	}
	say("An image was built from this repository: one small static web server, test/fixture/webapp. Import it:")
	_, err = s.berth("image", "import", archive)
	return err
}

func (s *show) runPod() error {
	say("Run it as a pod with a network namespace and an address of its own:")
	began := time.Now()
	if _, err := s.berth("run", "-d", "--name", "web", "--log-dir", s.n.Logs, imageName); err != nil {
		return err
	}
	took := time.Since(began).Round(time.Millisecond)
	if err := s.find(); err != nil {
		return err
	}
	if _, err := s.berth("ps"); err != nil {
		return err
	}
	say("It took %s from the command to a running container, most of it in the CNI plugins.\nThe pod has the address "+
		"%s, and its server is process %d of this machine. Fetch a page:", took, s.ip, s.pid)
	return s.fetch()
}

// find learns the pod's address and the process of its container, from CRI and from the kernel.
func (s *show) find() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := s.n.Runtime.ListContainers(node.AskForAllPods(ctx), &v1.ContainerFilter{
		State: &v1.ContainerStateValue{State: v1.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		return err
	}
	if len(list) != 1 {
		return fmt.Errorf("%d containers run, and there should be one", len(list))
	}
	s.ctr, s.pod = list[0].Id, list[0].PodSandboxId
	pod, err := s.n.Runtime.PodSandboxStatus(ctx, s.pod, false)
	if err != nil {
		return err
	}
	s.ip = pod.Status.GetNetwork().GetIp()
	for s.pid == 0 { // the runtime has started it, and on a busy machine it may yet have to become the server
		if s.pid = process(s.ctr); ctx.Err() != nil {
			return fmt.Errorf("no process of this machine is the server of container %s", s.ctr)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

func (s *show) fetch() error {
	url := "http://" + s.ip + ":8080/"
	fmt.Printf("  $ curl %s\n", url)
	var page string
	var err error
	for range 100 { // the server may need a moment to listen
		if page, err = s.n.Get(url); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Printf("    %s\n", strings.TrimSpace(page))
	return err
}

func (s *show) lookInside() error {
	say("What the server has printed, and what it looks like from inside:")
	if _, err := s.berth("logs", "web"); err != nil {
		return err
	}
	_, err := s.berth("exec", "web", "--", "/webapp", "inside")
	return err
}

func (s *show) killDaemon() error {
	say("Now kill -9 the daemon, process %d:", s.n.Pid())
	fmt.Printf("  $ kill -9 %d\n", s.n.Pid())
	if err := s.n.Kill9(); err != nil {
		return err
	}
	if now := process(s.ctr); now != s.pid {
		return fmt.Errorf("the server was process %d and is %d", s.pid, now)
	}
	say("There is no daemon now, and the pod has not noticed: the server is still process %d, and counts on:", s.pid)
	return s.fetch()
}

func (s *show) restart() error {
	began := time.Now()
	if err := s.n.Start(); err != nil {
		return err
	}
	say("Start the daemon again. It was ready after %s, and knows the pod. The log has the request that came in between:",
		time.Since(began).Round(time.Millisecond))
	if _, err := s.berth("ps"); err != nil {
		return err
	}
	out, err := s.berth("logs", "web")
	if err == nil && !strings.Contains(out, "request 2") {
		err = fmt.Errorf("the log lacks the request that came while no daemon ran")
	}
	return err
}

func (s *show) remove() error {
	say("Remove it all:")
	if _, err := s.berth("rm", "-f", "web"); err != nil {
		return err
	}
	_, err := s.berth("rmi", imageName)
	return err
}
