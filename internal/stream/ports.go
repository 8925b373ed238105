package stream

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// portProtocols are those of a port-forward over a WebSocket in which channels are messages, and whether those are text
// in base64. Each port that was asked for is one connection. The i-th has channel 2i for its data and 2i+1 for why it
// cannot be had. The first message of each holds the number of the port, as two bytes, the lower one first.
//
// The library has them, too. It keeps a message of up to 32 MiB for each session whose port does not read, takes the
// first byte of each further frame of a message for the number of a channel, and answers no ping while a port waits.
var portProtocols = map[string]bool{"v4.channel.k8s.io": false, "v4.base64.channel.k8s.io": true, "": false}

// serveWebSocket forwards ports over a WebSocket until each of them has ended, or the client goes.
func (f forwarder) serveWebSocket(w http.ResponseWriter, r *http.Request, of carrying, ports []int32) {
	s, err := accept(w, r, func(protocol string) bool { _, known := portProtocols[protocol]; return known })
	if err != nil {
		f.cfg.Log.Debug("a WebSocket connection could not be opened", "error", err)
		return
	}
	c := newChannels(s, portProtocols[s.Subprotocol()], &f.backlogs)
	all := make([]forwarded, len(ports))
	for i, number := range ports {
		data, errs := byte(2*i), byte(2*i+1)
		all[i] = forwarded{f, of, uint16(number), c.input(data), output{c, data}, output{c, errs}}
	}
	c.gone = func() { // what the pods have of the client's data is not all of it
		for _, in := range c.inputs {
			in.cut()
		}
	}
	ctx, done := c.serve(r, f.cfg.Log)
	defer done()
	for _, p := range all {
		p.begin()
	}
	var wg sync.WaitGroup
	for _, p := range all {
		wg.Go(func() { p.run(ctx) })
	}
	wg.Wait()
}

// forwarded is a port of a port-forward over a WebSocket.
type forwarded struct {
	forwarder
	of        carrying
	port      uint16
	in        *input
	out, errs output
}

// begin tells the client which port the channels are of.
func (p forwarded) begin() {
	number := binary.LittleEndian.AppendUint16(nil, p.port)
	_, _ = p.out.Write(number)
	_, _ = p.errs.Write(number)
}

// run forwards a connection until the pod has ended its direction or cut it, or ctx ends. The protocol has no end of a
// channel, so that a client can neither be told nor tell that one direction alone has ended.
func (p forwarded) run(ctx context.Context) {
	defer p.in.abandon()
	conn, done, err := p.connect(ctx)
	if err != nil { // in the words of the library
		_, _ = fmt.Fprintf(p.errs, "error forwarding port %d to pod %s, uid : %v", p.port, p.of.pod, err)
		return
	}
	defer done()
	sent := make(chan error, 1)
	go func() {
		_, err := p.in.WriteTo(conn)
		if err == nil {
			err = conn.CloseWrite()
		}
		sent <- err
	}()
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetWriteDeadline(time.Unix(0, 1)) // the pod had its time to take what is there
		if err := <-sent; err != nil {
			Reset(conn)
			return
		}
		_ = conn.SetReadDeadline(time.Now().Add(inputTime)) // a pod that gets the end does not end at once
	})
	defer stop()
	if _, err := io.Copy(p.out, conn); err != nil {
		_, _ = io.Copy(io.Discard, conn) // a pod whose output meets a closed connection loses what it has not read
	}
}

// connect connects to the port, and counts the connection as two streams until done is called, which closes it.
func (p forwarded) connect(ctx context.Context) (conn Conn, done func(), err error) {
	if err := p.of.take(2); err != nil {
		return nil, nil, err
	}
	conn, hungUp, err := p.dial(ctx, p.of.pod, p.port)
	if err != nil {
		p.of.give(2)
		return nil, nil, err
	}
	return conn, func() {
		_ = conn.Close()
		hungUp()
		p.of.give(2)
	}, nil
}
