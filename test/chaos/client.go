package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/timeouts"
)

// client speaks CRI, and makes a request again until it is through.
type client struct {
	pods    cri.RuntimeServiceClient
	images  cri.ImageServiceClient
	conn    *grpc.ClientConn
	limit   time.Duration // how long a request is made again
	through atomic.Int64  // requests that were
}

func dial(socket string, limit time.Duration) (*client, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond,
			},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, limit: limit}
	c.pods, c.images = cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
	return c, nil
}

func (c *client) close() error { return c.conn.Close() }

// ready waits until pods can be run.
func (c *client) ready(most time.Duration) error {
	deadline := time.Now().Add(most)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := c.conditions(ctx)
		cancel()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *client) conditions(ctx context.Context) error {
	resp, err := c.pods.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, condition := range resp.GetStatus().GetConditions() {
		if !condition.Status && (condition.Type == cri.RuntimeReady || condition.Type == cri.NetworkReady) {
			return fmt.Errorf("%s: %s %s", condition.Type, condition.Reason, condition.Message)
		}
	}
	return nil
}

// final is an error that making the request again cannot change.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// errStuck is the end of a request that did not get through, however often it was made.
var errStuck = errors.New("stuck")

// tryFor is how long a client waits for one answer. A kubelet waits for two minutes; this one is in a hurry, so that
// more requests are given up and made again.
func tryFor() time.Duration { return timeouts.For(20 * time.Second) }

// repeat makes a request until it is through.
func (c *client) repeat(what string, request func(context.Context) error) error {
	began := time.Now()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), tryFor())
		err := request(ctx)
		cancel()
		if err == nil {
			c.through.Add(1)
			return nil
		}
		if errors.As(err, new(final)) {
			return err
		}
		if waited := time.Since(began); waited > c.limit {
			return fmt.Errorf("%s is %w since %s: %w", what, errStuck, waited.Round(time.Second), err)
		}
		time.Sleep(wait)
	}
}
