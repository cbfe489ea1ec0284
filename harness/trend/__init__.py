"""All runs of a folder over time: which numbers stepped, at which run, and what had changed in it."""
