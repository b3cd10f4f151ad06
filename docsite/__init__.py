"""The documentation site: `make docs` builds it from `docs/` and from the code.

    pages       the source tree: the pages of docs/, with their links and the tables of contents
    reference   pages that are generated from the code
    python_api  the Python API, from docstrings
    llms        llms.txt and llms-full.txt, for language models
    conf        the configuration of Sphinx, which makes HTML of the source tree
    build       all of it, strictly

Pages in `docs/` are plain Markdown that reads well without the site. `docs/index.md` is the table of contents.
"""
