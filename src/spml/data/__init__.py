"""Data in: images and features by rows, views of images, packs."""

from spml.data.features import FeatureStore
from spml.data.images import BadImage, ImageStore, decode
from spml.data.pack import Pack, load_pack
from spml.data.views import ViewParameters, ViewSettings

__all__ = [
    "BadImage",
    "FeatureStore",
    "ImageStore",
    "Pack",
    "ViewParameters",
    "ViewSettings",
    "decode",
    "load_pack",
]
