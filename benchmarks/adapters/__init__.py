"""An adapter of Headrace for the harness of hardbyte/postgresql-job-queue-benchmarking. The folder is complete by itself."""
