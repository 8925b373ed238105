package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"berth/internal/admin"
	"berth/test/timeouts"
)

// Close removes every pod, checks that nothing of them is left, stops the daemon, and removes the node. The error names
// everything that was left behind.
func (n *Node) Close() error {
	var errs []error
	if d := n.current(); d == nil || d.ended() {
		if err := n.Start(); err != nil {
			return errors.Join(err, n.discard())
		}
	}
	errs = append(errs, n.RemoveAll())
	errs = append(errs, n.Clean(timeouts.For(30*time.Second)))
	errs = append(errs, n.Stop())
	if left := n.traces().outliving(timeouts.For(10 * time.Second)); len(left) > 0 {
		errs = append(errs, fmt.Errorf("processes outlive the pods and the daemon: %s", strings.Join(left, "; ")))
	}
	return errors.Join(errors.Join(errs...), n.discard())
}

// AskForAllPods has the calls of a context list the pods of berth run, too.
func AskForAllPods(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, admin.PodsKey, admin.AllPods)
}

// RemoveAll stops and removes every pod that there is.
func (n *Node) RemoveAll() error {
	ctx, cancel := context.WithTimeout(AskForAllPods(context.Background()), timeouts.For(time.Minute))
	defer cancel()
	pods, err := n.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var errs []error
	for _, p := range pods {
		if err := n.Runtime.StopPodSandbox(ctx, p.Id); err != nil {
			errs = append(errs, fmt.Errorf("stop pod %s: %w", p.Metadata.GetName(), err))
		}
		if err := n.Runtime.RemovePodSandbox(ctx, p.Id); err != nil {
			errs = append(errs, fmt.Errorf("remove pod %s: %w", p.Metadata.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// outliving lists what still runs of the node. What is just ending has until the timeout.
func (t traces) outliving(timeout time.Duration) []string {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		late := time.Now().After(deadline)
		if left := t.processes(); len(left) == 0 || late {
			return left
		}
	}
}

// Clean checks that nothing of any pod is left, when there should be none: no mount, link, filter rule, network
// namespace, cgroup, process, lease or file. What is still ending has until the timeout.
func (n *Node) Clean(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		late := time.Now().After(deadline)
		left, err := residue(n) // which may fail at what changes under its eyes
		if err == nil && len(left) == 0 {
			return nil
		}
		if late && err != nil {
			return err
		}
		if late {
			return fmt.Errorf("left behind by pods that were removed (%s):\n  %s", n.Instance, strings.Join(left, "\n  "))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// discard takes the node down, whatever state it is in.
func (n *Node) discard() error {
	n.disconnect()
	if d := n.current(); d != nil && !d.ended() {
		_ = n.Kill9()
	}
	for _, l := range n.listeners {
		_ = l.Close()
	}
	if keep := os.Getenv("BERTH_KEEP_LOGS"); keep != "" && n.Dir != "" {
		_ = os.MkdirAll(keep, 0o755)
		_ = os.Rename(n.Dir+"/daemon.log", filepath.Join(keep, filepath.Base(n.Dir)+".log"))
	}
	errs := []error{n.traces().erase()}
	if n.Space != nil {
		errs = append(errs, n.Space.Close())
	}
	return errors.Join(errs...)
}
