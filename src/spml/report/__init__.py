"""Reports: figures, galleries, and one self-contained HTML file."""

from spml.report.figures import Series, line_chart
from spml.report.landscape import Landscape, loss_landscape
from spml.report.page import write_report
from spml.report.studies import StudyChart, k_sensitivity, label_budget

__all__ = [
    "Landscape",
    "Series",
    "StudyChart",
    "k_sensitivity",
    "label_budget",
    "line_chart",
    "loss_landscape",
    "write_report",
]
