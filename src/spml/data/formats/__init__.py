"""One reader per data format; each returns a `Dataset`."""
