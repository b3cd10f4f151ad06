"""The older dialects of the data plane. They differ from the first in names and shapes alone."""
