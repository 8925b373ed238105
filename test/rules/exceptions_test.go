package rules

// What broke the rules when they came, to be emptied. Nothing is added here: a rule that does not fit is changed for
// all.

// largeByEmbedding are types of too many methods, counted with those of what they embed.
var largeByEmbedding = map[string]int{
	"internal/cli.runner":    26,
	"internal/cli.session":   33,
	"internal/cli.statsView": 26,
}
