"""The rules of a source that its settings declare: keys, conditions and transforms of captured messages."""
