"""The application that you declare, and the service that one process runs."""
