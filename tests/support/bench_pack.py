"""A tiny pack with images and features, and protocols on it, that the tests of the benchmark share."""

import io
import zipfile

import numpy as np
from PIL import Image

ROWS, TRAIN, VAL = 60, 32, 12
CLASSES = ("red", "green", "blue")

LINEAR = """
title = "Tiny, linear"
kind = "linear"
seeds = [0, 1]
paper = { file = "cole2021", table = "1", setting = "linear" }
[train]
epochs = 3
[grid]
train.learning_rate = [1e-1, 1e-2]
train.batch_size = [4, 8]
[data]
voc12 = { k = 1.5 }
[methods.bce]
[methods.an]
[methods.role]
"""

FINETUNE = """
title = "Tiny, fine-tuned"
kind = "finetune"
backbone = "small"
image_size = 32
seeds = [0]
[train]
epochs = 1
batch_size = 8
learning_rate = 1e-2
[data]
voc12 = { k = 1.5 }
[methods.an]
[methods.iu]
draw.negatives = 1
[methods.role-linear-init]
method = "role"
linear_init = { epochs = 2, learning_rate = 1e-2, batch_size = 8 }
"""


def write_pack(folder, *, hide_training_truth=False):
    """60 images of 32 pixels whose bright channels are their labels, and six noisy features of the same."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    truth = draw.random((ROWS, 3)) < 0.4
    truth[np.arange(ROWS), draw.integers(0, 3, ROWS)] = True
    observed = np.array([draw.choice(np.flatnonzero(row)) for row in truth])
    observed[TRAIN:] = -1
    names = np.array([f"{row:02}" for row in range(ROWS)])
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for row in range(ROWS):
            pixels = draw.integers(0, 60, (32, 32, 3), dtype=np.uint8)
            pixels[..., truth[row]] += 150
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            archive.writestr(f"{names[row]}.png", file.getvalue())
    features = np.hstack([truth, ~truth]) + draw.normal(0, 0.8, (ROWS, 6))
    np.save(folder / "features.npy", features.astype(np.float32))
    labels = truth.astype(np.int8)
    if hide_training_truth:  # as in the shipped CUB: nothing but the observed positive, and not even that as a label
        labels[:TRAIN] = 0
    np.savez(
        folder / "labels.npz",
        image=names,
        classes=np.array(CLASSES),
        labels=labels,
        observed=observed,
        train=np.arange(TRAIN),
        val=np.arange(TRAIN, TRAIN + VAL),
        test=np.arange(TRAIN + VAL, ROWS),
        largest_share=np.where(truth, draw.uniform(0.05, 0.9, truth.shape), 0.0).astype(np.float32),
    )
    return folder
