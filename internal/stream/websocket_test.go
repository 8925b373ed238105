package stream

import (
	"context"
	"encoding/base64"
	"io"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// exits runs a command that says something and fails.
type exits struct{ deaf }

func (exits) Exec(_ context.Context, _ string, _ []string, _ bool, s Streams) (int, error) {
	_, _ = io.WriteString(s.Stdout, "hi")
	return 3, nil
}

// TestWebSocketProtocols has a command's output and end be told in each protocol.
func TestWebSocketProtocols(t *testing.T) {
	for protocol := range webSocketProtocols {
		t.Run(protocol, func(t *testing.T) {
			s, _ := serve(t, func(c *Config) { c.Node = exits{} })
			address, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			at, err := websocket.NewConfig(strings.Replace(address, "http", "ws", 1), "http://localhost")
			if err != nil {
				t.Fatal(err)
			}
			if protocol != "" {
				at.Protocol = []string{protocol}
			}
			c, err := websocket.DialConfig(at)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			said := map[byte]string{} // by channel
			for {
				var message []byte
				if err := websocket.Message.Receive(c, &message); err != nil {
					break
				}
				channel, text := message[0], message[1:]
				if strings.Contains(protocol, "base64") {
					channel -= '0'
					if text, err = base64.StdEncoding.DecodeString(string(text)); err != nil {
						t.Fatal(err)
					}
				}
				said[channel] += string(text)
			}
			want := `"reason":"ExitCode","message":"3"`
			if !strings.HasPrefix(protocol, "v") {
				want = "command terminated with non-zero exit code: exit code 3"
			}
			if said[1] != "hi" || !strings.Contains(said[3], want) || strings.HasPrefix(said[3], "{") != (want[0] == '"') {
				t.Errorf("%q", said)
			}
		})
	}
}
