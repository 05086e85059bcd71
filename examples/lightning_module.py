"""A loss from spml in a Lightning module.

python examples/lightning_module.py
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spml
from pytorch_loop import toy_data


class SinglePositiveModule(lightning.LightningModule):
    """A multi-label classifier trained on one label per row, validated on all labels."""

    def __init__(self, width: int, classes: int, loss: str = "em") -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, classes))
        self.criterion = spml.loss(loss)
        self.outputs: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Batches hold labels of 1 (observed) and 0 (unknown)."""
        inputs, known = batch
        loss: Tensor = self.criterion(self.network(inputs), known)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Collect predictions: average precision needs all rows at once."""
        inputs, truth = batch
        self.outputs.append((self.network(inputs), truth))

    def on_validation_epoch_end(self) -> None:
        """Log mAP."""
        scores, truth = (torch.cat(part) for part in zip(*self.outputs, strict=True))
        self.outputs.clear()
        self.log("mAP", float(spml.metrics.mean_average_precision(scores, truth)), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(epochs: int = 10) -> float:
    """Train and return the mAP on held-out rows."""
    lightning.seed_everything(0, verbose=False)
    features, truth = toy_data(1200)
    labels = nn.functional.one_hot(torch.multinomial(truth, 1).squeeze(1), truth.shape[1])
    training = DataLoader(TensorDataset(features[:900], labels[:900]), batch_size=32, shuffle=True)
    validation = DataLoader(TensorDataset(features[900:], truth[900:]), batch_size=300)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(SinglePositiveModule(features.shape[1], truth.shape[1]), training, validation)
    score = float(trainer.callback_metrics["mAP"])
    print(f"validation mAP: {score:.3f}")
    return score


if __name__ == "__main__":
    main()
