"""Where rows are kept: images, feature matrices, files larger than memory."""
