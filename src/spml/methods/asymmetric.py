"""Focal loss (Lin et al. 2017) and ASL (Ridnik et al. 2021), unknown labels assumed negative."""

from spml.losses.asymmetric import asymmetric, focal
from spml.methods.base import mean_row
from spml.methods.interface import MEAN_OF_ENTRIES, MEAN_OF_ROWS
from spml.methods.registry import loss_method

loss_method("focal", focal, paper="Lin 2017", needs=MEAN_OF_ENTRIES, balance=0.75,  # Zhou et al., Appendix C
            summary="Focal loss: AN with less weight on easy entries.")  # fmt: skip
loss_method("asl", asymmetric, paper="Ridnik 2021", needs=MEAN_OF_ROWS, reduce=mean_row,
            summary="Asymmetric loss: AN with less weight on easy negatives, none on the easiest.")  # fmt: skip
