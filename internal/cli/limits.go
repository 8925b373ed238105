package cli

import (
	"fmt"
	"strconv"

	"berth/internal/admin"
	"berth/internal/config"
	"berth/internal/limit"
)

// nearLimit is the part of a shared limit, in percent, from which the doctor speaks of it.
const nearLimit = 80

// diagnoseLimits lists the limits in force, with what is used of those that all share, as far as a daemon tells.
func diagnoseLimits(cfg *config.Config, used []admin.Limit) (found []diagnosis) {
	shared := map[string]admin.Limit{}
	for _, u := range used {
		shared[u.Name] = u
	}
	unset := map[string]string{} // what a key means that is 0
	for _, k := range config.Keys() {
		unset[k.Name] = k.Unset
	}
	for _, b := range limit.All() {
		b, err := inForce(cfg, b)
		if err != nil {
			found = append(found, diagnosis{Subject: "limit", Result: warning, Text: b.Name + ": " + err.Error(),
				Remedy: "compare the versions of this command and of the daemon: berth version"})
			continue
		}
		u, ok := shared[b.Name]
		if ok {
			b = b.At(u.Limit).With(u.Used) // what the daemon made of the key, where that goes by the machine
		}
		d := diagnoseLimit(b, ok)
		if b.Limit == 0 && unset[b.Key] != "" {
			d.Text = fmt.Sprintf("%s: %s (%s)", b.Name, unset[b.Key], b.Key)
		}
		found = append(found, d)
	}
	return found
}

// inForce is a limit as its key has it.
func inForce(cfg *config.Config, b limit.Budget) (limit.Budget, error) {
	if b.Key == "" {
		return b, nil
	}
	n, err := strconv.ParseInt(cfg.Value(b.Key), 10, 64)
	if err != nil {
		return b, fmt.Errorf("the configuration has no number at %s", b.Key)
	}
	return b.At(n), nil
}

// diagnoseLimit tells of one limit. Where it is shared, and nearly used up, it warns.
func diagnoseLimit(b limit.Budget, shared bool) diagnosis {
	d := diagnosis{Subject: "limit", Result: fine, Text: b.Name + ": " + b.Amount(b.Limit)}
	if b.Limit == 0 {
		d.Text = b.Name + ": none"
	}
	if shared {
		d.Text = fmt.Sprintf("%s: %d used of %s", b.Name, b.Used, b.Amount(b.Limit))
	}
	if b.Key != "" {
		d.Text += " (" + b.Key + ")"
	}
	if shared && b.Limit > 0 && b.Used*100 >= b.Limit*nearLimit {
		d.Result, d.Remedy = warning, "what is beyond it "+b.Beyond
		if b.Key != "" {
			d.Remedy += "; raise " + b.Key + " where that is too early"
		}
	}
	return d
}
