"""Run folders on disk: atomic files, checkpoints and logs."""
