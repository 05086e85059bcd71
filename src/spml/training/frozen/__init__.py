"""What the features of a frozen network are used for.

=================  ====================================================================
`pooled_features`  computes the features
`feature_cache`    keeps them for later runs on the same images
`stages`           a classifier on the features first, then the whole network
`soft_labels`      soft labels for the training of a network, from linear probes
`epr_head`         EPR's head joins those of `auto` if rows have many labels
`regions`          labels that are visible in a part of an image
`linear_init`      the head of a network is trained first (Cole et al. 2021)
=================  ====================================================================
"""
