"""Text tokenised once, in files that are mapped into memory."""
