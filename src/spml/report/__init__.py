"""The report: figures, galleries and one HTML file that needs nothing beside it."""

from .figures import Series, line_chart
from .landscape import Landscape, loss_landscape
from .page import write_report
from .studies import Study, k_sensitivity, label_budget

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
