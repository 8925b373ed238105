package config

import "slices"

// pluginNames are what a validator calls plugins: balloons, and with the index 10-balloons.
var pluginNames = optionalList.with("list of names", func(names []string) string {
	if slices.Contains(names, "") {
		return "an empty string is no name of a plugin"
	}
	return ""
})

// nriKeys are the keys of NRI, in the order of the documentation.
var nriKeys = []key[Config]{
	{
		name: "nri.enable", restart: true, unset: "on the default root",
		field: of(func(c *Config) **bool { return &c.NRI.Enable }, optionalBoolean, nil),
		comment: "Lets plugins of the Node Resource Interface see and change pods and containers.\n" +
			"Left out: where root is the default, so for one daemon of a node.",
		meaning: "plugins of the Node Resource Interface may see and change pods and containers; see " +
			"[NRI](nri.md). `true` or `false`. Unless it is said: on where `root` is the default, off for " +
			"every other Berth of the node",
	},
	{
		name: "nri.socket", restart: true,
		field: of(func(c *Config) *string { return &c.NRI.Socket }, optionalPath, "/var/run/nri/nri.sock"),
		comment: "Where plugins connect. Empty: only those in plugin_dir take part. One that is in use is left " +
			"alone.",
		meaning: "where plugins connect; when empty, only those in `nri.plugin_dir` take part. One that " +
			"somebody listens at is left to them, and NRI is off then",
	},
	{
		name: "nri.plugin_dir", restart: true,
		field:   of(func(c *Config) *string { return &c.NRI.PluginDir }, path, "/opt/nri/plugins"),
		comment: "Programs named <index>-<name>, which are started with the daemon.",
		meaning: "programs named `<index>-<name>`, such as `10-balloons`, which are started with the daemon",
	},
	{
		name: "nri.config_dir", restart: true,
		field:   of(func(c *Config) *string { return &c.NRI.ConfigDir }, path, "/etc/nri/conf.d"),
		comment: "Their configuration: <index>-<name>.conf or <name>.conf.",
		meaning: "their configuration: `<index>-<name>.conf` or `<name>.conf`",
	},
	{
		name: "nri.registration_timeout", restart: true,
		field:   of(func(c *Config) *Duration { return &c.NRI.RegistrationTimeout }, duration, seconds(5)),
		comment: "Of a plugin's registration, and of its answer to one request; then it is dropped.",
		meaning: "for a plugin to register",
	},
	{
		name: "nri.request_timeout", restart: true,
		field:   of(func(c *Config) *Duration { return &c.NRI.RequestTimeout }, duration, seconds(2)),
		meaning: "for a plugin's answer to one request; then it is dropped",
	},
	{
		name: "nri.synchronization_timeout", restart: true,
		field: of(func(c *Config) *Duration { return &c.NRI.SynchronizationTimeout }, duration, seconds(10)),
		comment: "Of a plugin's answer when it joins and is shown what there is. No container is made " +
			"meanwhile.",
		meaning: "for a plugin that joins to answer when it is shown what there is; no container is made " +
			"meanwhile. Then it is dropped",
	},
	{
		name: "nri.validator.enable", restart: true,
		field:   of(func(c *Config) *bool { return &c.NRI.Validator.Enable }, boolean, false),
		comment: "Judges what plugins change of a container before it is made, and which of them must take part.",
		meaning: "the validator of NRI judges containers before they are made; see " +
			"[NRI](nri.md#the-validator). Without it the other keys of `nri.validator`, and the " +
			"annotation of pods, say nothing",
	},
	{
		name: "nri.validator.required_plugins", restart: true,
		field:   of(func(c *Config) *[]string { return &c.NRI.Validator.RequiredPlugins }, pluginNames, nil),
		comment: "Names of plugins without which no container is made: \"balloons\", or \"10-balloons\".",
		meaning: "plugins without which no container is made, by their names, such as `balloons`, or, with " +
			"the index, `10-balloons`. Pods name " +
			"more of them in the annotation `required-plugins.noderesource.dev`",
	},
	{
		name: "nri.validator.tolerate_missing_plugins_annotation", restart: true, unset: "none",
		field:   of(func(c *Config) *string { return &c.NRI.Validator.TolerateMissing }, text, ""),
		comment: "A pod with this annotation, and true, does without them: that of the plugin itself, and static pods.",
		meaning: "the key of an annotation with which a pod does without required plugins, where its value " +
			"is `true`: that of " +
			"such a plugin itself, and static pods",
	},
	{
		name: "nri.validator.reject_oci_hook_adjustment", restart: true,
		field:   of(func(c *Config) *bool { return &c.NRI.Validator.RejectHooks }, boolean, false),
		comment: "Refuse containers of which plugins change these:",
		meaning: "a container to which a plugin adds OCI hooks is refused",
	},
	{
		name: "nri.validator.reject_namespace_adjustment", restart: true,
		field:   of(func(c *Config) *bool { return &c.NRI.Validator.RejectNamespaces }, boolean, false),
		meaning: "a container whose namespaces a plugin changes is refused",
	},
	{
		name: "nri.validator.reject_sysctl_adjustment", restart: true,
		field:   of(func(c *Config) *bool { return &c.NRI.Validator.RejectSysctls }, boolean, false),
		meaning: "a container whose sysctls a plugin changes is refused",
	},
	{
		name: "nri.validator.reject_runtime_default_seccomp_adjustment", restart: true,
		field: of(func(c *Config) *bool { return &c.NRI.Validator.RejectDefaultSeccomp }, boolean, false),
		meaning: "a container with the seccomp profile RuntimeDefault, of which a plugin changes the " +
			"filter, is refused",
	},
	{
		name: "nri.validator.reject_unconfined_seccomp_adjustment", restart: true,
		field:   of(func(c *Config) *bool { return &c.NRI.Validator.RejectUnconfinedSeccomp }, boolean, false),
		meaning: "the same for a container without a filter",
	},
	{
		name: "nri.validator.reject_custom_seccomp_adjustment", restart: true,
		field:   of(func(c *Config) *bool { return &c.NRI.Validator.RejectCustomSeccomp }, boolean, false),
		meaning: "the same for a container with a filter of its own (Localhost)",
	},
}
