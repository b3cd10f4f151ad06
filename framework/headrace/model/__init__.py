"""The words: keys, filters, messages, specs, outcomes and errors. No I/O, no clock, nothing of ours below."""
