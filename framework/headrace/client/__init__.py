"""The same administration as `headrace.app.admin`, of a server over HTTP."""
