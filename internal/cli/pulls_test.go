package cli

import (
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/admin"
)

// TestPullsTable has a pull of a kubelet that goes on, one by hand that waits, and one of which nothing is known yet.
func TestPullsTable(t *testing.T) {
	d := startDaemon(t)
	out, errs, code := d.berth(t, "pulls")
	if out != "IMAGE   STATE   DONE   RATE   LAYERS   FROM   POD   FOR\n" || code != 0 {
		t.Errorf("without pulls: code %d, %s%s", code, out, errs)
	}
	began := time.Now().Add(-90 * time.Second)
	d.underway = []admin.Underway{
		{
			Reference: "docker.io/library/nginx:1", Namespace: "default", Pod: "web", Began: began,
			Phase: "downloading", Done: 41_000_000, Total: 187_000_000, Rate: 5_300_000, Hosts: []string{"a:5000", "b:5000"},
			Layers: []admin.PullEvent{
				{Layer: "sha256:1", Phase: "exists"}, {Layer: "sha256:2", Phase: "done"},
				{Layer: "sha256:3", Phase: "downloading"},
			},
		},
		{
			Reference: "quay.io/app:v1", Began: began, Phase: "waiting", Total: 900,
			Layers: []admin.PullEvent{{Phase: "waiting"}},
		},
		{Reference: "quay.io/x:v1", Namespace: "prod", Began: time.Now(), Phase: "resolving"},
	}
	const want = `
IMAGE                       STATE         DONE                     RATE       LAYERS   FROM            POD           FOR
docker.io/library/nginx:1   downloading   41.0 MB / 187 MB (21 %)  5.3 MB/s   2/3      a:5000 b:5000   default/web   90s
quay.io/app:v1              waiting       0 B / 900 B (0 %)        -          0/1      -               -             90s
quay.io/x:v1                resolving     -                        -          -        -               prod          1s
`
	if out, errs, code = d.berth(t, "pulls"); squeeze(out) != squeeze(want[1:]) || code != 0 {
		t.Errorf("code %d, %s\n%s\nwant%s", code, errs, out, want)
	}
	out, _, _ = d.berth(t, "pulls", "-o", "json")
	var got []admin.Underway
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got) != 3 || got[0].Rate != 5_300_000 ||
		len(got[0].Layers) != 3 {
		t.Errorf("%v: %s", err, out)
	}
	d.underway = nil
	if out, _, _ = d.berth(t, "pulls", "-o", "json"); out != "[]\n" {
		t.Errorf("without pulls: %q", out)
	}
	d.refuse["Pulls"] = status.Error(codes.Unimplemented, "unknown method Pulls")
	const older = "berth: unknown method Pulls; is the daemon older than this command, or not Berth?\n"
	if _, errs, code = d.berth(t, "pulls"); code == 0 || errs != older {
		t.Errorf("an older daemon: code %d, %s", code, errs)
	}
}
