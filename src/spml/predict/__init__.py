"""Labels for new rows: from images, features or tables to files."""

from spml.predict.predictor import predict_files

__all__ = ["predict_files"]
