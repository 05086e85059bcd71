"""The report: figures, galleries and one HTML file that needs nothing beside it."""

from spml.report.figures import Series, line_chart
from spml.report.landscape import Landscape, loss_landscape
from spml.report.page import write_report
from spml.report.studies import Study, k_sensitivity, label_budget

__all__ = [
    "Landscape",
    "Series",
    "Study",
    "k_sensitivity",
    "label_budget",
    "line_chart",
    "loss_landscape",
    "write_report",
]
