"""A loss from spml in a plain PyTorch training loop.

python examples/pytorch_loop.py --loss em
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spml


def main(loss: str = "em", epochs: int = 10) -> float:
    """Train a small network on one label per row; return the test mAP against all labels."""
    torch.manual_seed(0)
    features, truth = toy_data(1200)
    observed = torch.multinomial(truth, 1).squeeze(1)  # one of the present labels of each row
    labels = torch.nn.functional.one_hot(observed, truth.shape[1])  # 1 observed, 0 unknown

    model = nn.Sequential(nn.Linear(features.shape[1], 64), nn.ReLU(), nn.Linear(64, truth.shape[1]))
    criterion = spml.loss(loss)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(features[:900], labels[:900]), batch_size=32, shuffle=True)
    for _ in range(epochs):
        for inputs, known in loader:
            optimiser.zero_grad()
            criterion(model(inputs), known).backward()
            optimiser.step()

    with torch.no_grad():
        score = float(spml.metrics.mean_average_precision(model(features[900:]), truth[900:]))
    print(f"test mAP of {loss}: {score:.3f}")
    return score


def toy_data(rows: int, classes: int = 6, width: int = 20) -> tuple[Tensor, Tensor]:
    """Rows with one to three of the classes; each class has a direction in feature space."""
    directions = torch.randn(classes, width)
    truth = torch.zeros(rows, classes)
    for row in truth:
        row[torch.randperm(classes)[: int(torch.randint(1, 4, ()))]] = 1
    return truth @ directions + 0.5 * torch.randn(rows, width), truth


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loss", default="em")
    main(parser.parse_args().loss)
