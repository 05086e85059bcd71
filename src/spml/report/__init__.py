"""Reports: figures, galleries, and one self-contained HTML file."""

from spml.report.figures import Series, line_chart
from spml.report.landscape import Landscape, loss_landscape
from spml.report.page import write_report
from spml.report.studies import StudyChart

__all__ = [
    "Landscape",
    "Series",
    "StudyChart",
    "line_chart",
    "loss_landscape",
    "write_report",
]
