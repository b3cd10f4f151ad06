"""From rows to messages: keys, records, conditions, transforms. Plain code that does no I/O."""
