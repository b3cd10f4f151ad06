"""Messages of publishers: their payloads, and the options of publish."""
