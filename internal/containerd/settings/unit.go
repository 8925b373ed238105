package settings

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// UnitProperties are what Options.Unit has of the service that runs containerd.
var UnitProperties = []string{"Environment", "EnvironmentFiles", "DropInPaths"}

// variables are those of the environment by which a daemon reaches registries, in small letters too.
var variables = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// unit takes over the variables by which the service of containerd reaches registries, and notes what else its drop-ins
// set. Values are not shown, since an address of a proxy may have a password.
func (c *conversion) unit(properties string) map[string]string {
	env, from := map[string]string{}, map[string]string{}
	take := func(file string, words []string) {
		for _, word := range words {
			name, value, ok := strings.Cut(word, "=")
			name = strings.TrimPrefix(name, "CONTAINERD_") // k3s has some of these for its containerd alone
			if ok && isVariable(name) && !strings.ContainsAny(value, "\n\x00") {
				env[name], from[name] = value, file
			}
		}
	}
	var files []string
	for line := range strings.Lines(properties) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "Environment":
			take("the service of containerd", words(value))
		case "EnvironmentFiles": // as PATH (ignore_errors=yes)
			file, _, _ := strings.Cut(value, " (")
			files = append(files, file)
		case "DropInPaths":
			for _, file := range strings.Fields(value) {
				if filepath.Base(filepath.Dir(file)) != "service.d" { // a distribution's for all services
					c.dropIn(file)
				}
			}
		}
	}
	for _, file := range files { // which are stronger than the unit's own
		if raw, err := readFile(file); err == nil {
			take(file, assignments(string(raw)))
		} else if !absent(file) {
			c.note(file, "it", err.Error())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.notes = append(c.notes, Note{
			File: from[name], Key: name, To: "the environment of the service of Berth",
			Why: c.stays(filepath.SplitList(env[name])...), // a proxy is no path
		})
	}
	return env
}

func isVariable(name string) bool {
	return slices.Contains(variables, name) || name == strings.ToLower(name) &&
		strings.HasSuffix(name, "_proxy") && slices.Contains(variables, strings.ToUpper(name))
}

// dropIn notes what a drop-in sets beside the environment.
func (c *conversion) dropIn(file string) {
	raw, err := readFile(file)
	if err != nil {
		c.note(file, "it", err.Error())
		return
	}
	var others []string
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		if ok && value != "" && !strings.ContainsAny(line[:1], "#;[") && !strings.HasPrefix(key, "Environment") {
			others = append(others, key)
		}
	}
	if len(others) > 0 {
		c.note(file, strings.Join(slices.Compact(others), ", "), "systemctl edit berth sets the like of the service of Berth")
	}
}

// assignments are those of an EnvironmentFile of systemd, with what is in quotes.
func assignments(text string) (out []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.ContainsAny(line[:1], "#;") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if parts := words(strings.TrimSpace(value)); ok && len(parts) > 0 {
			out = append(out, strings.TrimSpace(name)+"="+strings.Join(parts, " "))
		}
	}
	return out
}

// words splits a text at spaces, but for those in quotes or after a backslash, as systemd does.
func words(text string) (out []string) {
	var word strings.Builder
	var quote rune
	within, escaped := false, false
	for _, r := range text {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			within, escaped = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			within, quote = true, r
		case quote == 0 && (r == ' ' || r == '\t'):
			if within {
				out = append(out, word.String())
				word.Reset()
			}
			within = false
		default:
			within = true
			word.WriteRune(r)
		}
	}
	if within {
		out = append(out, word.String())
	}
	return out
}

// WithEnvironment is a file for EnvironmentFile of systemd with the variables that it does not set already.
func WithEnvironment(file []byte, env map[string]string) []byte {
	there := map[string]bool{}
	for _, a := range assignments(string(file)) {
		name, _, _ := strings.Cut(a, "=")
		there[name] = true
	}
	added := ""
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !there[name] {
			added += fmt.Sprintf("%s=\"%s\"\n", name, quoted.Replace(env[name]))
		}
	}
	if added != "" && len(file) > 0 && !strings.HasSuffix(string(file), "\n") {
		added = "\n" + added
	}
	return append(slices.Clone(file), added...)
}
