"""Several databases behind one server."""
