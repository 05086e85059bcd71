"""Reports: figures, galleries, and one self-contained HTML file."""

from spml.report.landscape import loss_landscape
from spml.report.page import write_report

__all__ = ["loss_landscape", "write_report"]
