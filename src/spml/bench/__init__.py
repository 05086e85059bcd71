"""The benchmark: jobs that run once, several on one GPU, and rows that say how they were made."""
