"""Data and metrics of the tasks: sources, shards, data sets, a sampler. Knows no model (docs/data.md)."""

from cosformer.tasks.datasets.collators import PackCollator, PadCollator
from cosformer.tasks.datasets.examples import LabelledTexts, SequencePairs
from cosformer.tasks.datasets.masked import Masked, MaskedTexts, MaskedWindows
from cosformer.tasks.datasets.packed import PackedDocuments
from cosformer.tasks.datasets.windows import Windows
from cosformer.tasks.encoders import ByteEncoder, Encoder, TokenizerEncoder, encoder_of
from cosformer.tasks.errors import BadData, DamagedShard, MissingPackage, SourceMissing
from cosformer.tasks.lra.source import LraSource
from cosformer.tasks.lra.vocabularies import ListOpsEncoder, PixelEncoder, listops_tokenizer, pixel_tokenizer
from cosformer.tasks.metrics.classification import Confusion, wilson
from cosformer.tasks.metrics.losses import LossSum
from cosformer.tasks.metrics.translation import bleu
from cosformer.tasks.metrics.yardsticks import ByteNgram, gzip_bits_per_byte
from cosformer.tasks.sampler import ResumableBatches
from cosformer.tasks.shards.building import Marks
from cosformer.tasks.shards.prepare import Progress, prepare
from cosformer.tasks.shards.shard_set import ShardSet
from cosformer.tasks.sources.hub import HubExamples, HubText
from cosformer.tasks.sources.named import NAMED, open_source
from cosformer.tasks.sources.own_examples import ExampleFiles
from cosformer.tasks.sources.own_text import TextFiles
from cosformer.tasks.sources.parallel import ParallelLines
from cosformer.tasks.sources.source import ExampleSource, Source, TextSource
from cosformer.tasks.word_level import word_tokenizer

__all__ = [
    "NAMED",
    "BadData",
    "ByteEncoder",
    "ByteNgram",
    "Confusion",
    "DamagedShard",
    "Encoder",
    "ExampleFiles",
    "ExampleSource",
    "HubExamples",
    "HubText",
    "LabelledTexts",
    "ListOpsEncoder",
    "LossSum",
    "LraSource",
    "Marks",
    "Masked",
    "MaskedTexts",
    "MaskedWindows",
    "MissingPackage",
    "PackCollator",
    "PackedDocuments",
    "PadCollator",
    "ParallelLines",
    "PixelEncoder",
    "Progress",
    "ResumableBatches",
    "SequencePairs",
    "ShardSet",
    "Source",
    "SourceMissing",
    "TextFiles",
    "TextSource",
    "TokenizerEncoder",
    "Windows",
    "bleu",
    "encoder_of",
    "gzip_bits_per_byte",
    "listops_tokenizer",
    "open_source",
    "pixel_tokenizer",
    "prepare",
    "wilson",
    "word_tokenizer",
]
