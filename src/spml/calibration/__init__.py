"""Calibrated confidences from single observed labels, with the uncertainty that remains."""

from spml.calibration.arrays import Bool, Float32, Float64, Int8, Int64
from spml.calibration.calibrate import CAUTIOUS, Calibration, Reading, calibrate, corrected
from spml.calibration.presence import Presence
from spml.calibration.recalibration import Recalibration
from spml.calibration.thresholds import best_threshold, expected_f1_thresholds

__all__ = [
    "CAUTIOUS",
    "Bool",
    "Calibration",
    "Float32",
    "Float64",
    "Int8",
    "Int64",
    "Presence",
    "Reading",
    "Recalibration",
    "best_threshold",
    "calibrate",
    "corrected",
    "expected_f1_thresholds",
]
