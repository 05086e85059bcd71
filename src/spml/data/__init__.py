"""Data sets, the formats they are read from, stores of images, features and texts, and augmentation."""

from spml.data.augment import ViewParameters, ViewSettings
from spml.data.dataset import Dataset, Truth, truth_closed
from spml.data.detect import open_data
from spml.data.formats.pack import write_pack
from spml.data.stores.decode import decode
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import BadImage, ImageStore
from spml.data.stores.texts import TextStore

__all__ = [
    "BadImage",
    "Dataset",
    "FeatureStore",
    "ImageStore",
    "TextStore",
    "Truth",
    "ViewParameters",
    "ViewSettings",
    "decode",
    "open_data",
    "truth_closed",
    "write_pack",
]
