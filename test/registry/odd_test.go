package registry

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
)

// odd is how a registry behaves that is no fault of the network, and what a pull makes of it. A new one is a row of
// oddities.
type odd struct {
	name   string
	who    string // the registry, or what stands before it
	source string // owner/repository#number of the public report
	fact   string // what it does, in our words

	// The fault says which requests it is about. Answer is the recorded answer that they get: status line, headers, an
	// empty line, the body; <registry> and <store> stand for their URLs, <path> for the path that was asked. Headers
	// change the registry's own answer, and `-Name` takes one away.
	fault   fixture.Fault
	answer  string
	headers string
	store   *odd // what redirects lead to: a place with the same content, and an oddity of its own
	resumed bool // a layer's download breaks off before, so that there is something to go on with
	again   bool // the image was pulled before
	unasked bool // a pull asks nothing that would be answered oddly

	auth  *v1.AuthConfig // the registry wants it
	hosts string         // lines of hosts.toml for the registry, which has TLS then
	code  codes.Code     // the pull fails so; OK when it works
	words []string       // in its error
}

// announceRanges has an answer say that ranges are served.
func announceRanges(r *http.Response) { r.Header.Set("Accept-Ranges", "bytes") }

// jsonType is what registries call their complaints.
const jsonType = "Content-Type: application/json\n"

// blobStoreRefusesCredentials is what object stores say to a request that has a signed URL and credentials as well.
func blobStoreRefusesCredentials(answer string) *odd {
	signed := func(r *http.Request) bool { return r.Header.Get("Authorization") != "" }
	return &odd{fault: fixture.Fault{If: signed}, answer: answer}
}

var (
	manifests     = fixture.Fault{Part: fixture.PartManifest}
	manifestHeads = fixture.Fault{Part: fixture.PartManifest, Method: "HEAD"}
	manifestGets  = fixture.Fault{Part: fixture.PartManifest, Method: "GET"}
	blobs         = fixture.Fault{Part: fixture.PartBlob}
	blobRanges    = fixture.Fault{Part: fixture.PartBlob, If: ranged}

	blobsUntilRedirected = fixture.Fault{
		Part: fixture.PartBlob, If: func(r *http.Request) bool { return !r.URL.Query().Has("downloads") },
	}
)

// complaint is an answer as most registries refuse in.
func complaint(status, code, message string) string {
	body := fmt.Sprintf(`{"errors":[{"code":%q,"message":%q}]}`, code, message)
	return "HTTP/1.1 " + status + "\n" + jsonType + "\n" + body
}

// leads is an answer that sends on to another place.
func leads(status, to, headers string) string {
	return "HTTP/1.1 " + status + "\nLocation: " + to + "\n" + headers + "\n"
}

// xml is an answer as object stores refuse in.
func xml(status, code, message string) string {
	const begin = "\nContent-Type: application/xml\n\n<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>"
	return "HTTP/1.1 " + status + begin + "<Code>" + code + "</Code><Message>" + message + "</Message></Error>"
}

// times has a fault pass after some requests.
func times(f fixture.Fault, n int) fixture.Fault {
	f.Times = n
	return f
}

// oddities are what registries were seen to do.
var oddities = []odd{
	{
		name: "hub-pull-limit", who: "Docker Hub", source: "docker/docs#11648",
		fact:  "past the limit of pulls, GET of a manifest is refused with a message that says what to do",
		fault: manifestGets,
		answer: complaint("429 Too Many Requests", "TOOMANYREQUESTS", "You have reached your pull rate limit. You may "+
			"increase the limit by authenticating and upgrading: https://www.docker.com/increase-rate-limit"),
		code: codes.Unavailable, words: []string{"429", "You have reached your pull rate limit"},
	},
	{
		name: "hub-pull-limit-unchanged", who: "Docker Hub", source: "docker/docs#11648",
		fact:   "HEAD of a manifest is not counted, and answered past the limit: an image that is there is not refused",
		fault:  manifestGets,
		answer: complaint("429 Too Many Requests", "TOOMANYREQUESTS", ""),
		again:  true, unasked: true,
	},
	{
		name: "hub-cdn-sends-all", who: "Docker Hub", source: "containerd/containerd#2364",
		fact:  "of the two networks that serve layers, one ignores a range and sends all of it",
		fault: fixture.Fault{Part: fixture.PartBlob, If: ranged, NoRange: true}, resumed: true,
	},
	{
		name: "hub-layer-stalls", who: "Docker Hub", source: "docker/hub-feedback#1233",
		fact:  "the download of a layer stands still in the middle, with its connection open",
		fault: fixture.Fault{Part: fixture.PartBlob, End: fixture.EndStall, After: 100 * kib, Times: 1},
	},
	{
		name: "hub-protects-itself", who: "Docker Hub", source: "docker/hub-feedback#1907",
		fact:   "many requests in a short time are refused without an explanation that a program could read",
		fault:  times(manifests, 2),
		answer: "HTTP/1.1 429 Too Many Requests\nContent-Type: text/html\nRetry-After: 1\n\nToo Many Requests (HAP429).\n",
	},
	{
		name: "ecr-no-digest", who: "ECR", source: "distribution/distribution#3792",
		fact:  "answers about manifests have no Docker-Content-Digest",
		fault: manifests, headers: "-Docker-Content-Digest",
	},
	{
		name: "ecr-digest-by-head-only", who: "ECR", source: "ChangemakerStudios/Docker.Registry.DotNet#35",
		fact:  "the digest is in answers to HEAD, and in none to GET",
		fault: manifestGets, headers: "-Docker-Content-Digest",
	},
	{
		name: "ecr-store-refuses-credentials", who: "ECR", source: "open-policy-agent/opa#6580",
		fact:  "layers are in S3, which refuses a signed URL that comes with the registry's credentials",
		fault: blobs, answer: leads("307 Temporary Redirect", "<store><path>?X-Amz-Algorithm=AWS4-HMAC-SHA256", ""),
		auth: right,
		store: blobStoreRefusesCredentials(xml("400 Bad Request", "InvalidArgument", "Only one auth mechanism allowed; "+
			"only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header "+
			"should be specified")),
	},
	{
		name: "ecr-token-expired", who: "ECR", source: "flipt-io/flipt#3043",
		fact:   "credentials that ran out are answered by 403 without a challenge",
		fault:  fixture.Fault{},
		answer: complaint("403 Forbidden", "DENIED", "Your authorization token has expired. Reauthenticate and try again."),
		code:   codes.PermissionDenied, words: []string{"Your authorization token has expired"},
	},
	{
		name: "ecr-public-rate", who: "ECR Public", source: "aws/aws-lambda-web-adapter#429",
		fact:  "strangers may ask once a second; what is more is refused, without saying for how long",
		fault: times(manifests, 2), answer: complaint("429 Too Many Requests", "TOOMANYREQUESTS", "Rate exceeded"),
	},
	{
		name: "gar-redirects-to-itself", who: "Artifact Registry", source: "ahmetb/serverless-registry-proxy#8",
		fact:   "layers are redirected to another path of the registry, named without a host",
		fault:  blobsUntilRedirected,
		answer: leads("302 Found", "<path>?downloads", jsonType),
	},
	{
		name: "gar-redirects-to-itself-signed", who: "Artifact Registry", source: "ahmetb/serverless-registry-proxy#8",
		fact:   "the same for who may see the layer: that place wants the credentials or none",
		fault:  blobsUntilRedirected,
		answer: leads("302 Found", "<path>?downloads", jsonType),
		auth:   right,
	},
	{
		name: "cloud-run-no-length", who: "Artifact Registry behind Cloud Run", source: "ahmetb/serverless-registry-proxy#10",
		fact:  "answers to HEAD have no Content-Length",
		fault: manifestHeads, headers: "-Content-Length",
	},
	{
		name: "k8s-cdn-refuses-the-rest", who: "registry.k8s.io", source: "kubernetes/registry.k8s.io#333",
		fact:  "a layer breaks off, and the request for the rest is refused with 400 and XML",
		fault: blobRanges, resumed: true,
		answer: xml("400 Bad Request", "InvalidArgument", ""),
	},
	{
		name: "acr-store-refuses-credentials", who: "ACR", source: "spring-attic/spring-cloud-dataflow#4412",
		fact:  "layers are in Azure's blob store, which does not know the registry's credentials",
		fault: blobs, answer: leads("307 Temporary Redirect", "<store><path>?sig=x&sp=r", ""), auth: right,
		store: blobStoreRefusesCredentials(xml("400 Authentication information is not given in the correct format. "+
			"Check the value of Authorization header.", "InvalidAuthenticationInfo", "")),
	},
	{
		name: "acr-private-endpoint", who: "ACR", source: "MicrosoftDocs/azure-docs#116188",
		fact:  "a firewall lets the registry through, and ends each connection to the place that layers are at",
		fault: blobs, answer: leads("307 Temporary Redirect", "<store><path>?sig=hidden", ""),
		store: &odd{fault: fixture.Fault{Drop: true}},
		code:  codes.Unavailable, words: []string{"redirects to"},
	},
	{
		name: "ghcr-no-such-package", who: "GHCR", source: "bytecodealliance/wasm-pkg-tools#40",
		fact:   "a package that does not exist is denied, as one that may not be seen",
		fault:  fixture.Fault{},
		answer: complaint("403 Forbidden", "DENIED", "requested access to the resource is denied"),
		code:   codes.PermissionDenied, words: []string{"requested access to the resource is denied"},
	},
	{
		name: "ghcr-url-expires", who: "GHCR", source: "containerd/stargz-snapshotter#167",
		fact:  "the place that a layer is redirected to is good for minutes; then it refuses, and the registry names another",
		fault: blobs, answer: leads("307 Temporary Redirect", "<store><path>?se=300", ""), resumed: true,
		store: &odd{fault: times(blobRanges, 1), answer: xml("403 Forbidden", "AccessDenied", "Request has expired")},
	},
	{
		name: "ghcr-breaks-off", who: "GHCR", source: "google/go-containerregistry#1500",
		fact:  "answers end before what their Content-Length says",
		fault: fixture.Fault{Part: fixture.PartBlob, End: fixture.EndHangup, After: 100 * kib, Times: 2},
	},
	{
		name: "ghcr-refuses-ranges", who: "GHCR", source: "tuna-os/tunaOS#579",
		fact:  "the network before the layers answers 501 to a range that it does not like",
		fault: blobRanges, answer: "HTTP/1.1 501 Unsupported client range\n\n", resumed: true,
	},
	{
		name: "quay-bad-gateway", who: "Quay", source: "podman-container-tools/podman#17802",
		fact:   "single requests for manifests and layers are answered by 502",
		fault:  fixture.Fault{Times: 2},
		answer: "HTTP/1.1 502 Bad Gateway\nContent-Type: text/html\n\n<html>502 Bad Gateway</html>",
	},
	{
		name: "quay-redirect-announces-ranges", who: "Quay", source: "rpardini/docker-registry-proxy#26",
		fact:  "layers are redirected to signed URLs, by an answer that has headers of the layer and a page",
		fault: blobs,
		answer: leads("302 FOUND", "<store><path>?Expires=1577978911&Signature=x", "Content-Type: text/html; charset=utf-8\n"+
			"Accept-Ranges: bytes\nCache-Control: max-age=31536000\n") + "<title>Redirecting...</title>",
		store: &odd{}, resumed: true,
	},
	{
		name: "quay-not-found", who: "Quay as a mirror", source: "quay/quay#1310",
		fact:  "a proxy for registries that say no digest says none itself",
		fault: manifests, headers: "-Docker-Content-Digest\n-Content-Length",
	},
	{
		name: "harbor-cache-head", who: "Harbor", source: "goharbor/harbor#13153",
		fact:  "a proxy project knows nothing of an image before the first GET: HEAD is answered by 404",
		fault: manifestHeads, answer: "HTTP/1.1 404 Not Found\n" + jsonType + "\n",
	},
	{
		name: "harbor-bare-head", who: "Harbor", source: "goharbor/harbor#13740",
		fact:  "HEAD has neither Content-Type nor Content-Length",
		fault: manifestHeads, headers: "-Content-Type\n-Content-Length",
	},
	{
		name: "harbor-not-found", who: "Harbor", source: "goharbor/harbor#20764",
		fact:   "what a proxy project does not find has a code of its own",
		fault:  manifests,
		answer: complaint("404 Not Found", "NOT_FOUND", "resource not found: repo library/debian, tag badtag not found"),
		code:   codes.NotFound, words: []string{"resource not found: repo library/debian"},
	},
	{
		name: "harbor-policy", who: "Harbor", source: "goharbor/harbor#15885",
		fact:  "an image with vulnerabilities is refused by 412, which says why only to GET",
		fault: manifests,
		answer: complaint("412 Precondition Failed", "PROJECTPOLICYVIOLATION",
			"current image with 86 vulnerabilities cannot be pulled due to configured policy"),
		code: codes.Unknown, words: []string{"412", "current image with 86 vulnerabilities cannot be pulled"},
	},
	{
		name: "harbor-http-store", who: "Harbor", source: "NVIDIA/enroot#222",
		fact:  "the registry has TLS, and the store that it redirects to has none",
		fault: blobs, answer: leads("307 Temporary Redirect", "<store><path>?X-Amz-Signature=hidden", ""),
		store: &odd{}, hosts: `ca = "ca.pem"`,
		code: codes.Unknown, words: []string{"without TLS", "allow_http_redirects = true"},
	},
	{
		name: "harbor-http-store-allowed", who: "Harbor", source: "NVIDIA/enroot#222",
		fact:  "the same, where hosts.toml allows it",
		fault: blobs, answer: leads("307 Temporary Redirect", "<store><path>?X-Amz-Signature=hidden", ""),
		store: &odd{}, hosts: "ca = \"ca.pem\"\n  allow_http_redirects = true",
	},
	{
		name: "nexus-head", who: "Nexus", source: "crazy-max/diun#1614",
		fact:   "HEAD of a manifest is answered by 404, and GET brings it",
		fault:  manifestHeads,
		answer: "HTTP/1.1 404 Not Found\nServer: nginx\n" + jsonType + "X-Content-Type-Options: nosniff\n\n",
	},
	{
		name: "nexus-spools", who: "Nexus", source: "sonatype/nexus-public#284",
		fact:  "a layer that is not in the cache is fetched whole before the first byte of the answer",
		fault: fixture.Fault{Part: fixture.PartBlob, Before: 5 * time.Second, Times: 1}, // longer than a host may stall
	},
	{
		name: "nora-spools", who: "NORA", source: "getnora-io/nora#1001",
		fact:  "the same, of each layer",
		fault: fixture.Fault{Part: fixture.PartBlob, Before: 5 * time.Second},
	},
	{
		name: "artifactory-refuses-ranges", who: "Artifactory", source: "containerd/containerd#11953",
		fact:  "a request with a range is refused by 400, also from the first byte on, and of a manifest",
		fault: fixture.Fault{If: ranged}, answer: complaint("400 Bad Request", "400", "Bad Request"),
		unasked: true,
	},
	{
		name: "artifactory-refuses-the-rest", who: "Artifactory", source: "containerd/containerd#11998",
		fact:  "the same, after a layer broke off",
		fault: fixture.Fault{If: ranged}, answer: complaint("400 Bad Request", "400", "Bad Request"),
		resumed: true,
	},
	{
		name: "artifactory-no-length", who: "Artifactory", source: "containerd/containerd#3110",
		fact:  "HEAD has no Content-Length",
		fault: manifestHeads, headers: "-Content-Length",
	},
	{
		name: "artifactory-other-length", who: "Artifactory", source: "containerd/containerd#3323",
		fact:  "HEAD has the length of another manifest than the one whose digest it names",
		fault: manifestHeads, headers: "Content-Length: 1638",
	},
	{
		name: "artifactory-virtual", who: "Artifactory", source: "google/go-containerregistry#1691",
		fact:  "a tag that is in no part of a virtual repository is answered by 403 when one of the parts may not be seen",
		fault: manifests, answer: complaint("403 Forbidden", "DENIED", "denied"),
		code: codes.PermissionDenied, words: []string{"403", "denied"},
	},
	{
		name: "artifactory-xray", who: "Artifactory", source: "sobolevn/git-secret#801",
		fact:  "what a policy blocks is answered by 403, with the policy in the message",
		fault: blobs,
		answer: complaint("403 Forbidden", "403", "Artifact download request rejected: it was not downloaded due to the "+
			"download blocking policy configured in Xray"),
		code: codes.PermissionDenied, words: []string{"download blocking policy configured in Xray"},
	},
	{
		name: "distribution-sends-all", who: "distribution as a cache", source: "distribution/distribution#4667",
		fact:    "a range of what is not in the cache yet is answered by all of it, which is announced to serve ranges",
		fault:   fixture.Fault{Part: fixture.PartBlob, If: ranged, NoRange: true, Edit: announceRanges},
		resumed: true,
	},
	{
		name: "centos-head", who: "registry.centos.org", source: "containerd/containerd#6684",
		fact:  "HEAD of a manifest is answered by 403",
		fault: manifestHeads, answer: "HTTP/1.1 403 Forbidden\n\n",
	},
}

// report is the form of a public report.
var report = regexp.MustCompile(`^[\w.-]+/[\w.-]+#\d+$`)

// TestOddities pulls an image from each of the registries of the table.
func TestOddities(t *testing.T) {
	r := openOwn(t, "stall_timeout = \"4s\"\n") // with the usual time for the first byte
	seen := map[string]bool{}
	for _, o := range oddities {
		if seen[o.name] || o.who == "" || o.fact == "" || !report.MatchString(o.source) {
			t.Errorf("row %q is not complete, or there twice", o.name)
		}
		seen[o.name] = true
		r.beside(o.name, o.play)
	}
}

// play pulls an image from the registry.
func (o odd) play(r rig) {
	target := r.registry()
	if o.auth != nil {
		target = r.ownRegistry(fixture.RegistryOptions{Auth: true})
	}
	a := r.app(mib, 8*kib).push(target)
	p := r.proxy(fixture.ProxyOptions{Target: target, TLS: o.hosts != ""})
	if o.hosts != "" {
		r.hosts(p.Addr, mirror(p.URL(), o.hosts), file{"ca.pem", p.CA})
	}
	reference := a.at(p.Addr)
	if o.again {
		r.ok(r.pull(reference, o.auth))
	}
	places := map[string]*fixture.Proxy{"<registry>": p}
	breaks := a.layers[0].on(fixture.Fault{End: fixture.EndHangup, After: 300 * kib, Times: 1, If: unranged})
	if o.store != nil {
		a.push() // the store is another registry, for who comes without credentials
		store := r.proxy()
		places["<store>"] = store
		store.On(o.store.faults(r, places)...)
		if o.resumed {
			store.On(breaks)
		}
	}
	p.On(o.faults(r, places)...)
	if o.resumed {
		p.On(breaks)
	}
	err := r.pull(reference, o.auth)
	if o.code != codes.OK {
		r.refused(err, o.code, append(o.words, reference, p.Addr)...)
		if err != nil && strings.Contains(err.Error(), "hidden") {
			r.Errorf("a signature in %v", err)
		}
		return
	}
	if err != nil {
		r.Fatalf("%s (%s): %s: %v", o.who, o.source, o.fact, err)
	}
	a.arrived(reference)
	if harmed(p) == o.unasked {
		r.Errorf("asked %v", p.Requests(""))
	}
}

func unranged(r *http.Request) bool { return !ranged(r) }

// harmed says whether a proxy was asked what it has a fault for.
func harmed(p *fixture.Proxy) bool {
	return slices.ContainsFunc(p.Requests(""), func(r fixture.Request) bool { return r.Harmed })
}

// faults is the behaviour as a fault of a proxy.
func (o odd) faults(r rig, places map[string]*fixture.Proxy) []fixture.Fault {
	r.Helper()
	f := o.fault
	switch {
	case o.answer != "":
		f.Answer = func(q *http.Request) *http.Response { return recorded(q, o.answer, places) }
	case o.headers != "":
		f.Edit = func(resp *http.Response) { edit(resp, o.headers) }
	}
	return []fixture.Fault{f}
}

// recorded makes an answer out of its text.
func recorded(q *http.Request, text string, places map[string]*fixture.Proxy) *http.Response {
	head, body, _ := strings.Cut(text, "\n\n")
	for name, p := range places {
		head = strings.ReplaceAll(head, name, p.URL())
	}
	head = strings.ReplaceAll(head, "<path>", (&url.URL{Path: q.URL.Path}).EscapedPath())
	lines := strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n"
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(lines)), q)
	if err != nil {
		panic("a recorded answer is none: " + err.Error())
	}
	resp.Body = io.NopCloser(strings.NewReader(body))
	return resp
}

// edit sets the headers of lines such as `Name: value`, and takes those of lines such as `-Name` away.
func edit(resp *http.Response, lines string) {
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "-"); ok {
			resp.Header.Del(name)
			continue
		}
		name, value, _ := strings.Cut(line, ": ")
		resp.Header.Set(name, value)
	}
}
