"""Training: the loop for networks, the trainer of many linear heads, checkpoints, several processes."""
