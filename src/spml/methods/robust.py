"""Beyond the four papers: SPLC and Hill (Zhang et al. 2021), GR (Chen et al. 2024), BoostLU (Kim et al. 2023)."""

from spml.losses.large import large_loss_rejection
from spml.losses.robust import generalised_robust, hill, self_paced_correction
from spml.methods.base import mean_row
from spml.methods.interface import MEAN_OF_ENTRIES, MEAN_OF_ROWS, Needs
from spml.methods.registry import loss_method

loss_method("splc", self_paced_correction, paper="Zhang 2021", needs=MEAN_OF_ROWS, reduce=mean_row,
            pseudo_label_setting="threshold",
            summary="From the second epoch on, confident unknown labels become positives.")  # fmt: skip
loss_method("hill", hill, paper="Zhang 2021", needs=MEAN_OF_ROWS, reduce=mean_row,
            summary="Assumed negatives predicted close to 1 have almost no gradient.")  # fmt: skip
loss_method("gr", generalised_robust, paper="Chen 2024", needs=MEAN_OF_ENTRIES,
            summary="Each unknown label is part positive, part negative, according to its prediction.")  # fmt: skip
loss_method("boostlu", large_loss_rejection, paper="Kim 2023", needs=Needs(head="cam"), head_settings={"boost": 5.0},
            share=0.5,
            summary="LL-R on class activation maps, with positive activations boosted five times.")  # fmt: skip
