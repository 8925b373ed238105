package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"berth/bench/internal/kubelet"
	"berth/bench/internal/peer"
	"berth/bench/internal/report"
)

// goods are what is measured of a good pod, in the order of the report.
var goods = []string{"start", "answer", "log", "exec", "stop", "remove"}

func title(what string) string {
	return map[string]string{
		"start":  "Start of a good pod",
		"answer": "Answer of a good pod to a request over HTTP",
		"log":    "Log: from that request until its line is in the log file",
		"exec":   "ExecSync in a good pod of a program that ends at once",
		"stop":   "Stop of a good pod",
		"remove": "Removal of a good pod",
	}[what]
}

// goodPod is a web server.
func goodPod(r *kubelet.Runtime) {
	r.Idle, r.Ready = []string{"/webapp", "serve"}, "listening"
}

// Requests to each good pod, and execs in it, in a cycle.
const (
	requests = 5
	execs    = 2
)

// visit is one good pod.
type visit struct {
	*kubelet.Pod
	address string
	asked   int
}

// tally notes what came of what was asked.
type tally struct {
	suite   *Suite
	runtime string
	hostile bool
	failed  int
}

func (t *tally) add(what string, took time.Duration, err error) bool {
	if err != nil {
		t.failed++
		fmt.Fprintf(t.suite.Progress, "  %s: %v\n", what, err)
		return false
	}
	t.suite.Report.AddTime(title(what), beside(t.hostile), t.runtime, took)
	return true
}

// good starts good pods, asks of them, and stops them, one after the other. What fails is counted.
func (s *Suite) good(ctx context.Context, p *peer.Peer, hostile bool) error {
	t := &tally{suite: s, runtime: p.Name, hostile: hostile}
	rt := p.Runtime.With(goodPod)
	for range s.Cycles {
		if err := s.cycle(ctx, rt, t); err != nil {
			return err
		}
	}
	s.note(p.Name, hostile, "failed calls and requests of good pods", report.Count, float64(t.failed))
	return nil
}

func (s *Suite) cycle(ctx context.Context, rt *kubelet.Runtime, t *tally) error {
	var pods []*visit
	for range s.Pods {
		if ctx.Err() != nil {
			break
		}
		begin := time.Now()
		pod, phases, err := within(ctx, func(ctx context.Context) (*kubelet.Pod, kubelet.Phases, error) {
			return rt.Start(ctx, false)
		})
		if !t.add("start", phases.Total(), err) {
			fmt.Fprintf(s.Progress, "  after %s\n", time.Since(begin))
			continue
		}
		v := &visit{Pod: pod}
		if v.address, err = pod.Address(ctx); err != nil {
			return errors.Join(err, pod.Discard())
		}
		pods = append(pods, v)
	}
	for range requests {
		for _, v := range pods {
			v.ask(ctx, t)
		}
	}
	for range execs {
		for _, v := range pods {
			took, err := v.Exec(ctx, "/bin/true")
			t.add("exec", took, err)
		}
	}
	for _, v := range pods {
		took, err := v.Stop(ctx)
		t.add("stop", took, err)
		took, err = v.Remove(ctx)
		t.add("remove", took, err)
	}
	return ctx.Err()
}

// within gives a pod a minute to start.
func within(
	ctx context.Context, start func(context.Context) (*kubelet.Pod, kubelet.Phases, error),
) (*kubelet.Pod, kubelet.Phases, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return start(ctx)
}

// ask gets a page over a connection of its own, and waits until the log tells of it.
func (v *visit) ask(ctx context.Context, t *tally) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	v.asked++
	path := fmt.Sprintf("/page-%d", v.asked)
	begin := time.Now()
	err := v.get(ctx, path)
	if !t.add("answer", time.Since(begin), err) {
		return
	}
	err = v.logged(ctx, path)
	t.add("log", time.Since(begin), err)
}

func (v *visit) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+v.address+":8080"+path, nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// logged waits until a line that ends in a path stands in the log.
func (v *visit) logged(ctx context.Context, path string) error {
	for {
		text, err := os.ReadFile(v.Log())
		if err == nil && bytes.Contains(text, []byte(path+"\n")) {
			return nil
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("%s is not in the log: %w", path, err)
		}
	}
}
