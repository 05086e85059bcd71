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
`effort`           what to train on images, by device, time and options
`experiment`       everything that decides the outcome of one training; `settings` and `label_draw` are parts
`examples`         rows of a store with their labels, and how batches of them are read
`evaluation`       predictions of networks, and their score
`device`           device, precision, random generators, allocator
`distributed`      several processes that compute what one computes
`accelerator`      the interface to `spml.accel`
`progress`         progress bars and signals
=================  =====================================================================================

The packages:

=================  =====================================================================================
`network`          the training loop of a network: `network.trainer.Trainer`
`frozen`           what the features of a frozen network are used for
`linear`           many linear heads at once, as in the linear protocol of Cole et al. (2021)
`learners`         converged linear learners and forests on features: `learners.fit_features`
=================  =====================================================================================
"""
