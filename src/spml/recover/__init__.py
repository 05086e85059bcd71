"""Recover missing labels with calibrated confidences; fully labelled rows are not needed."""

from spml.recover.exports import export, label_studio_config
from spml.recover.labels import Recovered, recover

__all__ = ["Recovered", "export", "label_studio_config", "recover"]
