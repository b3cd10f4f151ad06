"""The suite on other versions of Postgres (`make test-postgres`) and of Python (`make test-python`)."""
