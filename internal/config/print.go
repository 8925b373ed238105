package config

import (
	"fmt"
	"strings"
)

// tables are those of a file, in the order in which they are printed. The last is followed by the tables of handlers.
var tables = []string{
	"", "cni", "cdi", "registry", "images", "image_verifier", "streaming", "nri", "nri.validator",
	"monitor", "pods", "limits", "timeouts", "metrics", "runtimes",
}

// TOML is the configuration as a file that says what each key is for. Loaded, it gives the same configuration again.
func (c *Config) TOML() string {
	var b strings.Builder
	for _, table := range tables {
		if table != "" {
			fmt.Fprintf(&b, "\n[%s]\n", table)
		}
		for _, k := range keys {
			if in, name := k.table(); in == table {
				printKey(&b, k, name, c)
			}
		}
	}
	for _, name := range c.Runtimes.names() {
		h := c.Runtimes.Handlers[name]
		fmt.Fprintf(&b, "\n[runtimes.%s]\n", quote(name))
		for _, k := range handlerKeys {
			printKey(&b, k, k.name, &h)
		}
	}
	return b.String()
}

func printKey[O any](b *strings.Builder, k key[O], name string, o *O) {
	if k.comment != "" {
		fmt.Fprintf(b, "# %s\n", strings.ReplaceAll(k.comment, "\n", "\n# "))
	}
	if text := k.text(o); text != "" {
		fmt.Fprintf(b, "%s = %s\n", name, text)
	}
}
