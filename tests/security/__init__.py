"""Attacks on the server: what a stranger, a web page, a token of little scope or a neighbouring tenant may try."""
