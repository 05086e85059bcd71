"""Recover missing labels with calibrated confidences; fully labelled rows are not needed, but twenty help a lot."""

from spml.recover.exports import export
from spml.recover.label_studio import label_studio_config
from spml.recover.labelled import LabelledRows
from spml.recover.labels import recover
from spml.recover.recovered import Recovered
from spml.recover.rule import Rule
from spml.recover.sample import sample_rows

__all__ = ["LabelledRows", "Recovered", "Rule", "export", "label_studio_config", "recover", "sample_rows"]
