"""All attentions side by side: speed and memory over length, quality from runs, one page of it."""
