"""HTTP server for an app's database: the API in three dialects, push consumers and webhooks."""
