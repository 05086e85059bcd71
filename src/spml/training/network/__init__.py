"""The training loop of a network.

===========  ====================================================================
`trainer`    `Trainer`: epochs, evaluation, interruption
`batches`    which rows and views make a batch
`step`       one step: loss, gradients, optimiser
`state`      everything that a checkpoint holds
`files`      run.json, log, checkpoint and best epoch
`finish`     predictions for all rows, which make the folder a finished run
===========  ====================================================================
"""
