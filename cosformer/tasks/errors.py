"""What can be wrong with data. Each message says what, got, why, fix, and names the file and line."""


class SourceMissing(FileNotFoundError):
    """Files that a source needs are not where they were looked for."""


class BadData(ValueError):
    """A file holds something other than it should; the message begins with its name and line."""


class DamagedShard(ValueError):
    """A shard on disk is not the one its manifest describes."""


class MissingPackage(ImportError):
    """An optional package is needed for this kind of data."""
