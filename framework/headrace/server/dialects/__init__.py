"""The endpoints that clients call for every batch, in the dialects streams, pull consumers and consume API, and
the endpoint of webhooks. The dialects differ only in names and shapes."""
