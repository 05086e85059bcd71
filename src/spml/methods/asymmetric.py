"""Focal loss (Lin et al. 2017) and ASL (Ridnik et al. 2021), unknown labels assumed negative."""

from ..losses import asymmetric, focal
from .base import loss_method, mean_row

loss_method("focal", focal, paper="Lin 2017", balance=0.75,  # the α Zhou et al. select, Appendix C
            summary="AN that looks away from easy entries.")  # fmt: skip
loss_method("asl", asymmetric, paper="Ridnik 2021", reduce=mean_row,
            summary="AN that looks away from easy negatives and drops the easiest.")  # fmt: skip
