package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/cli"
	"berth/internal/config"
)

// command is "berth serve" below its root, with args parsed.
func command(t *testing.T, args ...string) *cobra.Command {
	t.Helper()
	root := cli.New("x")
	root.AddCommand(serveCommand())
	cmd, rest, err := root.Find(append([]string{"serve"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestSaid(t *testing.T) {
	for name, c := range map[string]struct {
		args                 []string
		envConfig, envSocket string
		path, socket         string
		pathSet              bool
	}{
		"nothing":            {path: config.DefaultPath},
		"flags":              {args: []string{"--config", "/c", "--socket", "/s"}, path: "/c", socket: "/s", pathSet: true},
		"a socket's address": {args: []string{"--socket", "unix:///run/s"}, path: config.DefaultPath, socket: "/run/s"},
		"environment":        {envConfig: "/e/c", envSocket: "unix:///e/s", path: "/e/c", socket: "/e/s", pathSet: true},
		"both": {args: []string{"--config=/c", "--socket=/s"}, envConfig: "/e/c", envSocket: "/e/s", path: "/c",
			socket: "/s", pathSet: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("BERTH_CONFIG", c.envConfig)
			t.Setenv("BERTH_SOCKET", c.envSocket)
			cmd := command(t, c.args...)
			got := flagsFrom(cmd, config.Flags{Path: cmd.Flag("config").Value.String()})
			if want := (config.Flags{Path: c.path, PathSet: c.pathSet, Socket: c.socket}); got != want {
				t.Errorf("got %+v, wanted %+v", got, want)
			}
		})
	}
}

// TestBadConfiguration wants serve to say where the mistake is, and to end.
func TestBadConfiguration(t *testing.T) {
	file := t.TempDir() + "/config.toml"
	if err := os.WriteFile(file, []byte("\nrot = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		file + ":2: rot: unknown key":                       {"--config", file},
		"read the configuration: stat /nonesuch/config":     {"--config", "/nonesuch/config"},
		"--root: root: \"r\" is not an absolute path":       {"--root", "r"},
		"--log-level: log_level: \"loud\" is none of debug": {"--log-level", "loud"},
	} {
		root := cli.New("x")
		root.AddCommand(serveCommand())
		root.SetArgs(append([]string{"serve"}, args...))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: got %v, wanted %s", args, err, want)
		}
	}
}

// TestHelp keeps serve's help, the defaults and docs/configuration.md together.
func TestHelp(t *testing.T) {
	t.Setenv("BERTH_CONFIG", "")
	t.Setenv("BERTH_SOCKET", "")
	cmd, d := command(t), config.Default()
	help := cmd.UsageString()
	defaults := map[string]string{
		"config": config.DefaultPath, "root": d.Root, "state": d.State, "socket": "unix://" + d.Socket,
		"log-level": d.LogLevel,
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		flags = append(flags, "--"+f.Name)
		line := regexp.MustCompile(`(?m)^ +--` + f.Name + ` .*$`).FindString(help)
		if value, known := defaults[f.Name]; !known ||
			!regexp.MustCompile(`: `+value+`\)$|default "`+value+`"\)$`).MatchString(line) {
			t.Errorf("the help of --%s does not tell the default %q: %s", f.Name, value, line)
		}
	})
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	top, _, _ := strings.Cut(string(text), "## Keys")
	for what, named := range map[string][]string{
		`--[a-z-]+`:     append(flags, "--default"), // of berth config
		`BERTH_[A-Z_]+`: regexp.MustCompile(`BERTH_[A-Z_]+`).FindAllString(help, -1),
	} {
		documented := regexp.MustCompile("`(?:berth config )?("+what+")`").FindAllStringSubmatch(top, -1)
		var got []string
		for _, m := range documented {
			got = append(got, m[1])
		}
		slices.Sort(got)
		slices.Sort(named)
		if !slices.Equal(slices.Compact(got), slices.Compact(named)) {
			t.Errorf("docs/configuration.md names %v, the help %v", got, named)
		}
	}
}
