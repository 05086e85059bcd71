"""Stores of images and features, also of files larger than memory."""
