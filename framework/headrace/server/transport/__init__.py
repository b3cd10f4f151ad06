"""HTTP on a socket: connections, requests, TLS, and the limits of each."""
