"""The older dialects of the data plane. They differ from dialect A only in names and shapes."""
