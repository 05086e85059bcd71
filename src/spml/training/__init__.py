"""Training: from labelled data to a finished run folder.

The modules in the order in which they run:

=================  =====================================================================================
`train_data`       entry of `spml train`: opens the data, and calls one of the next three
`train_features`   trains on features, texts, or the features of a frozen network
`run_experiment`   trains a network on images; benchmarks call it directly
`frozen.stages`    runs both for images, one after the other, and keeps the better result
=================  =====================================================================================

What they share:

=================  =====================================================================================
`options`          what a user can choose about a training
`effort`           what to train on images, by device, time and options
`experiment`       everything that decides the outcome of one training; `settings` and `label_draw` are parts
`examples`         rows of a store with their labels, and how batches of them are read
`evaluation`       predictions of networks, and their score
`device`           device, precision, random generators, allocator
`distributed`      several processes that compute what one computes
`accelerator`      the interface to `spml.accel`
`progress`         progress bars and signals
=================  =====================================================================================

The packages, and what each of them trains:

=================  =====================================================================================
`network`          a network on images, in epochs over batches: `network.trainer.Trainer`
`learners`         linear models and forests on features, to convergence: `learners.fit_features`
`linear`           many linear heads on features at once, in epochs over batches, for `spml bench`
`frozen`           `learners` on the features of a frozen network, and what a network's training takes from them
=================  =====================================================================================
"""
