"""The five tasks of the Long-Range Arena as sources: two are generated, three read their published files."""
