package cli

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// typed is what people type who know docker, nerdctl and crictl, with berth in the place of those.
const typed = `
run -d --name web -p 8080:80 nginx
run -dp 80:80 nginx
run -d --rm nginx
run -d -P nginx
run -dP -p 80 --publish-all nginx
run -it --rm busybox sh
run --rm -it -v /srv:/srv -w /srv -u 1000:1000 alpine sh -c ls
run -d --name db -e A=b --env C=d --env-file f -v /data:/data --memory 512m --cpus 1.5 postgres:16
run -d --restart unless-stopped img
run -d --restart=always --network host --hostname h --label a=b --entrypoint /x img
run --rm --network bridge --expose 80 --quiet --sig-proxy --no-healthcheck busybox true
run --rm --volume /a:/b --mount type=bind,src=/a,dst=/b --tmpfs /t --cap-add NET_ADMIN --cap-drop ALL --privileged img
run --rm --security-opt no-new-privileges --read-only --pids-limit 10 img
run --rm --ulimit nofile=1024 --shm-size 1g --stop-signal INT img
run --detach --tty --interactive --publish 1:1 --workdir / --user 0 --dns 1.1.1.1 --dns-opt a img
run --pull always --platform linux/arm64 --runtime runc --pid host --ipc host img
run --sysctl a=b --device /dev/x --group-add 1 img
ps
ps -a
ps -aq
ps -a -q --no-trunc
ps --filter name=web --filter status=exited --filter label=a=b -n 3 -l
ps --format json
ps -o json
ps --all --quiet --last 1 --latest
logs web
logs -f --tail 100 web
logs --tail=all --follow --timestamps --since 10m --until 1m web
logs -n 5 -p web
logs  web
exec -it web sh
exec -it -u root -w / -e A=b --env-file f web bash
exec -d web touch /x
exec -i web cat
stop web
stop -t 5 web
stop --time=5 web a b
stop --timeout 5 web
start web
restart -t 1 web
restart --time 1 web
kill web
kill -s HUP web
kill --signal=SIGTERM web
rm web
rm -f web
rm -fv web
rm --force --volumes web
wait web
cp web:/a ./b
cp -L web:/a -
top web
stats
stats --no-stream
stats -a web
stats --format json --no-stream
inspect web
inspect web db
image inspect a b
inspect --type container web
port web 80
attach web
attach --no-stdin web
update --memory 1g --memory-swap 2g --cpus 2 --pids-limit 5 --cpuset-cpus 0 -m 1g -c 5 web
images
images -a -q
images --no-trunc --digests nginx
images --filter reference=nginx --format json
image ls
image prune -a -f
image prune -af
image inspect nginx
image rm nginx
pull nginx
pull -q nginx
pull --platform linux/amd64 --quiet nginx
rmi nginx
rmi -f nginx
rmi --force nginx a b
tag a b
save -o f a
save a b
load -i f
load --input f -q
login -u me --password-stdin r.example
login -u me -p x r.example
logout r.example
history nginx
history --no-trunc nginx
info
info -o json
info --format json
version
version --format json
--version
-v
events
system df
system df -v
system prune
system prune -af
system prune --all --force --volumes
system info
container ls -a
container rm web
container prune -f
container inspect web
container stats
pods
pods -q --name web --state ready --label a=b
inspectp web
inspecti nginx
rmp -fa
port-forward web 8080:80
exec -s web ls
ps --pod web --image nginx --state running --label a=b --name x
`

// TestTypedAsKnown has each of those taken as it is typed; what it does is tested elsewhere.
func TestTypedAsKnown(t *testing.T) {
	for line := range strings.Lines(strings.TrimSpace(typed)) {
		root := New("v-test")
		var done *cobra.Command
		var refused error
		replace(root, func(cmd *cobra.Command) { done = cmd })
		root.SetArgs(strings.Fields(line))
		root.SetOut(new(strings.Builder))
		if refused = root.Execute(); refused != nil || done == nil && !strings.HasPrefix(line, "-") {
			t.Errorf("berth %s: %v", strings.TrimSpace(line), refused)
		}
	}
}

// replace has commands do nothing but tell that they would.
func replace(cmd *cobra.Command, told func(*cobra.Command)) {
	if cmd.HasParent() {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { told(cmd); return nil }
	}
	for _, c := range cmd.Commands() {
		replace(c, told)
	}
}

// TestWhatBerthLacks has each of what it lacks answered with what to do instead.
func TestWhatBerthLacks(t *testing.T) {
	for line, want := range map[string]string{
		"push app:v1":              `berth has no command "push": berth save -o FILE IMAGE`,
		"build -t app:v1 .":        `berth has no command "build": images are built elsewhere`,
		"volume ls":                `berth has no command "volume": what is to stay is a directory`,
		"psx":                      `berth has no command "psx"; did you mean `,
		"zzzzzzz":                  `berth has no command "zzzzzzz"; see berth --help`,
		"container zzzzzzz":        `berth container has no command "zzzzzzz"; see berth container --help`,
		"image lst":                `berth image has no command "lst"; did you mean list`,
		"ps --format {{.Names}}":   "there are no templates: json is for jq",
		"inspect -f {{.Id}} web":   "unknown shorthand flag: 'f' in -f: berth inspect prints JSON, for jq",
		"run --gpus all img":       "unknown flag: --gpus: devices have names of CDI",
		"container run --link a b": "unknown flag: --link: containers that belong together share a pod",
		"-n k8s.io ps":             "Berth has one list of containers",
		"rmi --prune":              "berth image prune --all",
		"events --since 1h":        "events are shown as they happen",
		"logs --tail many web":     "want a number of lines, or all",
	} {
		_, errs, code := startDaemon(t).berth(t, strings.Fields(line)...)
		usage := 2
		if strings.Contains(line, "run ") {
			usage = ownFailure
		}
		if code != usage || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("berth %s: code %d, %q", line, code, errs)
		}
	}
	root := New("v-test")
	for _, name := range slices.Sorted(maps.Keys(insteadOf)) {
		if cmd, _, err := root.Find([]string{name}); err == nil && cmd != root {
			t.Errorf("berth has %s, and advice for those who miss it", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(insteadOfFlag)) {
		command, flag, ok := strings.Cut(name, " ")
		if !ok {
			continue
		}
		cmd, _, err := root.Find([]string{command})
		if err != nil || cmd.Flags().Lookup(flag) != nil || len(flag) == 1 && cmd.Flags().ShorthandLookup(flag) != nil {
			t.Errorf("berth %s has --%s, and advice for those who miss it: %v", command, flag, err)
		}
	}
}

// TestContainerPrune removes pods of berth run in which nothing runs, and nobody else's.
func TestContainerPrune(t *testing.T) {
	d, logs := runnable(t)
	run := func(name string) {
		if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", name, "img:1"); code != 0 {
			t.Fatal(errs)
		}
	}
	run("done")
	until(func() bool { out, _, _ := d.berth(t, "ps", "-q"); return out == "" })
	d.behave = func(l *life) int32 { <-l.stop; return 0 }
	run("runs")
	d.addPod(id("aa"), "kube", "default")
	d.addContainer(id("ca"), id("aa"), "main", 0, runtimeapi.ContainerState_CONTAINER_EXITED)
	done := d.pods[0].Id
	run("young") // as while berth run makes its first container
	d.mu.Lock()
	for i, c := range d.containers {
		if c.Metadata.Name == "young" {
			d.containers = slices.Delete(d.containers, i, i+1)
			break
		}
	}
	for _, p := range d.pods {
		if p.Metadata.Name == "young" {
			p.CreatedAt = time.Now().UnixNano()
		}
	}
	d.mu.Unlock()
	if out, errs, code := d.berth(t, "container", "prune", "-f"); code != 0 || out != done+"\n" || len(d.pods) != 3 {
		t.Errorf("code %d, %q, %q, pods %v", code, out, errs, d.pods)
	}
}

// TestRemoveByForce is about what is not there: whoever removes by force wants it to be gone.
func TestRemoveByForce(t *testing.T) {
	d, logs := runnable(t)
	if _, errs, code := d.berth(t, "run", "-d", "--log-dir", logs, "--name", "web", "img:1"); code != 0 {
		t.Fatal(errs)
	}
	out, errs, code := d.berth(t, "rm", "-f", "nosuch", "web")
	if out != "web\n" || code != 0 || !strings.Contains(errs, `there is no container or pod "nosuch"`) {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	if _, _, code := d.berth(t, "rm", "nosuch"); code != 3 {
		t.Errorf("without force: code %d", code)
	}
}
