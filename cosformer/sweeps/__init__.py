"""Many runs of recipes that differ in a few fields: queued, resumed, collected into one table (docs/lra.md)."""

from cosformer.sweeps.jobs import Job, Variant, attention_variants, jobs_of
from cosformer.sweeps.queue import QueueSettings, Running, run_queue
from cosformer.sweeps.table import cells_of, collect, markdown_table, rows_of

__all__ = [
    "Job",
    "QueueSettings",
    "Running",
    "Variant",
    "attention_variants",
    "cells_of",
    "collect",
    "jobs_of",
    "markdown_table",
    "rows_of",
    "run_queue",
]
