"""All attentions side by side: speed and memory over length, quality from runs, one page of it."""

from cosformer.compare.markdown import comparison_markdown
from cosformer.compare.page import Comparison, comparison_page, read_comparison
from cosformer.compare.quality import Quality, read_quality
from cosformer.compare.results import Cell, Result
from cosformer.compare.settings import Sweep
from cosformer.compare.sweep import sweep_folder

__all__ = [
    "Cell",
    "Comparison",
    "Quality",
    "Result",
    "Sweep",
    "comparison_markdown",
    "comparison_page",
    "read_comparison",
    "read_quality",
    "sweep_folder",
]
