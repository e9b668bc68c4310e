"""Encoders give the ids of their tokenizers, here and in other processes."""

import pickle

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from cosformer.models import byte_tokenizer
from cosformer.tasks import ByteEncoder, TokenizerEncoder, encoder_of, word_tokenizer
from cosformer.tasks.pieces import Piece, Place


def test_the_byte_tokenizer_needs_no_tokenizer() -> None:
    tokenizer = byte_tokenizer()
    encoder = encoder_of(tokenizer)
    assert isinstance(encoder, ByteEncoder)
    for text in ("né <eos> 漢\n", ""):
        assert encoder.encode([text.encode()])[0].tolist() == tokenizer(text).input_ids
    assert encoder.encode([b"\xff\x00"])[0].tolist() == [258, 3]
    reading_specials = byte_tokenizer(split_special_tokens=False)  # other ids for a text with "<eos>"
    assert not isinstance(encoder_of(reading_specials), ByteEncoder)


def test_a_tokenizer_travels_and_is_known_again() -> None:
    inner = word_tokenizer([Piece(b" a b b \n c \n", Place("x", 1))])
    encoder = encoder_of(inner)
    assert isinstance(encoder, TokenizerEncoder)
    assert encoder.vocab_size == 6
    ids = encoder.encode([b"b c zzz <unk>\n\nb"])[0]
    assert ids.tolist() == [3, 5, 2, 2, 1, 1, 3]
    again = pickle.loads(pickle.dumps(encoder))
    assert again.fingerprint == encoder.fingerprint
    assert np.array_equal(again.encode([b"a b"])[0], encoder.encode([b"a b"])[0])
    inner.enable_padding(length=9)
    assert encoder_of(inner).fingerprint == encoder.fingerprint  # not part of what text becomes
    assert encoder_of(inner).encode([b"a"])[0].tolist() == [4]
    other = encoder_of(word_tokenizer([Piece(b"a a b", Place("x", 1))]))
    assert other.fingerprint != encoder.fingerprint
    assert word_tokenizer([Piece(b"a a b", Place("x", 1))], most=4).get_vocab_size() == 4
    with pytest.raises(ValueError, match="most=2: <pad>, <eos> and <unk> come first"):  # it gave all but the rarest
        word_tokenizer([Piece(b"a a b", Place("x", 1))], most=2)


def test_a_large_vocabulary_needs_wider_ids() -> None:
    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoder = encoder_of(inner)
    assert encoder.encode([b"w69999 w1"])[0].tolist() == [69_999, 1]
    assert encoder.encode([b"w1"])[0].dtype == np.uint32


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(TypeError, match="a fast tokenizer of transformers"):
        encoder_of(object())
