"""The benchmark: protocols, studies, searches, and experiments that run once."""
