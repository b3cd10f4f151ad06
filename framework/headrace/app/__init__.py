"""Assembly: the application that a user writes, and the service that one process runs."""
