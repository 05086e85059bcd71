"""Data in: images and features by rows, views of images, data sets of one's own and the published ones."""

from spml.data.dataset import Dataset, Truth, truth_closed
from spml.data.features import FeatureStore
from spml.data.images import BadImage, ImageStore, decode
from spml.data.open import open_data
from spml.data.pack import Pack, load_pack
from spml.data.views import ViewParameters, ViewSettings

__all__ = [
    "BadImage",
    "Dataset",
    "FeatureStore",
    "ImageStore",
    "Pack",
    "Truth",
    "ViewParameters",
    "ViewSettings",
    "decode",
    "load_pack",
    "open_data",
    "truth_closed",
]
