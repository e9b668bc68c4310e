"""What is reported of a model, from sums that can be added over batches and processes."""
