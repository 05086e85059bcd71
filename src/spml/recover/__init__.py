"""Recover missing labels with calibrated confidences; fully labelled rows are not needed."""

from spml.calibration import Calibration, Frequencies, calibrate, estimate_frequencies, expected_f1_thresholds
from spml.recover.exports import FORMATS, export, label_studio_config
from spml.recover.labels import LabelTable, Recovered, RecoveryScores, evaluate_recovery, recover

__all__ = [
    "FORMATS",
    "Calibration",
    "Frequencies",
    "LabelTable",
    "Recovered",
    "RecoveryScores",
    "calibrate",
    "estimate_frequencies",
    "evaluate_recovery",
    "expected_f1_thresholds",
    "export",
    "label_studio_config",
    "recover",
]
