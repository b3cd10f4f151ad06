"""The console: a page for browsers that shows and changes everything through the public API. Its files are in `static`."""
