"""Predict labels for new rows: from images, features or tables, to arrays or files."""

from spml.predict.predictor import Labeller, Predictor, open_predictor, predict_files

__all__ = ["Labeller", "Predictor", "open_predictor", "predict_files"]
