"""Says what is missing, before anything else of this package is imported."""

OLDEST = (5, 17)

try:
    import transformers
except ImportError as error:
    raise ImportError("cosformer.models needs transformers: pip install 'cosformer[models]'") from error

if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(
        f"cosformer.models needs transformers {'.'.join(map(str, OLDEST))} or newer and found "
        f"{transformers.__version__}: its caches changed; pip install -U transformers"
    )
