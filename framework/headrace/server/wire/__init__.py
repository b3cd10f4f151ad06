"""Types of the API's request and answer bodies, and their conversion for the store."""
