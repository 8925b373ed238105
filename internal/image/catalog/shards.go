package catalog

import (
	"hash/maphash"
	"iter"
	"maps"
)

// shardCount bounds what a change of one key copies: one shard, and a pointer to each of the others.
const shardCount = 256

var shardSeed = maphash.MakeSeed()

func shardOf(key string) int { return int(maphash.String(shardSeed, key) % shardCount) }

// shards is an immutable map. A changed copy shares the shards that the change does not touch, so that a change costs
// about the same with any number of keys. The zero value is empty.
type shards[V any] struct{ parts [shardCount]map[string]V }

func (s *shards[V]) get(key string) (V, bool) {
	v, ok := s.parts[shardOf(key)][key]
	return v, ok
}

// keys are all keys, in no order.
func (s *shards[V]) keys() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, part := range s.parts {
			for key := range part {
				if !yield(key) {
					return
				}
			}
		}
	}
}

// shardEdit makes a changed copy of a map.
type shardEdit[V any] struct {
	next *shards[V]
	own  [shardCount]bool // the shards that were copied already
}

func editShards[V any](old *shards[V]) *shardEdit[V] {
	next := *old
	return &shardEdit[V]{next: &next}
}

// shard is the one that holds the key, copied at the first change.
func (e *shardEdit[V]) shard(key string) map[string]V {
	n := shardOf(key)
	if !e.own[n] {
		e.next.parts[n], e.own[n] = maps.Clone(e.next.parts[n]), true
	}
	if e.next.parts[n] == nil {
		e.next.parts[n] = map[string]V{}
	}
	return e.next.parts[n]
}

func (e *shardEdit[V]) put(key string, v V) { e.shard(key)[key] = v }

func (e *shardEdit[V]) drop(key string) {
	if _, there := e.next.get(key); there {
		delete(e.shard(key), key)
	}
}
