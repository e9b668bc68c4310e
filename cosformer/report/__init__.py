"""A run folder as one page: report.html, which needs no network and no other file."""

from cosformer.report.page import report_page, write_report
from cosformer.report.reading import DEMO, Run, read_run

__all__ = ["DEMO", "Run", "read_run", "report_page", "write_report"]
