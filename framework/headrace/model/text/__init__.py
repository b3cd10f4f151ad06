"""How values and errors are written for people: masked, without control characters, and in a sentence."""
