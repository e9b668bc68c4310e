"""Training: Trainer, LoRA, bf16 for hundreds of steps, and inputs that leave nothing to attend to."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import padded, small_model, tokens
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

from cosformer.models import (
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForPairClassification,
    CosformerForSequenceClassification,
)


class Rows(Dataset):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]


def rows_for(cls: type) -> Rows:
    rows = []
    for i in range(8):
        ids = tokens(12, seed=i)
        row: dict[str, Any] = {"input_ids": ids, "labels": ids}
        if cls in (CosformerForSequenceClassification, CosformerForPairClassification):
            row["labels"] = torch.tensor(i % 2)
        if cls is CosformerForPairClassification:
            row["other_input_ids"] = tokens(9, seed=i + 100)
        rows.append(row)
    return Rows(rows)


def arguments(folder: Path, kind: type = TrainingArguments, **options: Any) -> Any:
    return kind(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=2, logging_steps=1, save_steps=2,
        use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, **options,
    )  # fmt: skip


HEADS: dict[type, dict[str, Any]] = {
    CosformerForCausalLM: {"tie_word_embeddings": True},
    CosformerForMaskedLM: {"causal": False},
    CosformerForSequenceClassification: {"causal": False},
    CosformerForPairClassification: {"causal": False},
    CosformerForConditionalGeneration: {"is_encoder_decoder": True, "decoder_start_token_id": 3},
}


@pytest.mark.parametrize("cls", HEADS, ids=lambda cls: cls.__name__)
def test_trainer_for_two_steps(cls: type, tmp_path: Path) -> None:
    model, data = small_model(cls, initializer_range=0.1, **HEADS[cls]), rows_for(cls)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = Trainer(model, arguments(tmp_path, learning_rate=1e-2), train_dataset=data, eval_dataset=data)
    assert trainer.train().global_step == 2
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert torch.isfinite(torch.tensor(trainer.evaluate()["eval_loss"]))
    again = type(model).from_pretrained(tmp_path / "checkpoint-2")
    for name, p in model.state_dict().items():
        assert torch.equal(p, again.state_dict()[name]), name


def test_accumulated_steps_equal_one_large_step(tmp_path: Path) -> None:
    """Two batches of two, accumulated, are one batch of four: rows of unequal numbers of labels included."""
    after = []
    for size, steps in ((4, 1), (2, 2)):
        model, data = small_model(CosformerForCausalLM, initializer_range=0.1), rows_for(CosformerForCausalLM)
        for i, row in enumerate(data.rows):
            row["labels"] = row["labels"].clone()
            row["labels"][: 1 + i] = -100
        options = arguments(tmp_path, gradient_accumulation_steps=steps, optim="sgd", learning_rate=1e-1)
        options.per_device_train_batch_size = size
        Trainer(model, options, train_dataset=data).train()
        after.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*after, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lora", [False, True])
def test_label_smoothing_of_trainer_is_of_the_next_token(lora: bool, tmp_path: Path) -> None:
    """Trainer knows by a list of names which models predict the next token; others would learn to copy."""
    model, ids = small_model(CosformerForCausalLM), tokens(2, 9)
    logits = model(ids).logits
    want = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
    if lora:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], r=2))
    trainer = Trainer(model.eval(), arguments(tmp_path, label_smoothing_factor=0.1))
    assert_close(trainer.compute_loss(model, {"input_ids": ids, "labels": ids}), want)


def test_labels_that_trainer_takes_away_are_missed_with_the_reason(tmp_path: Path) -> None:
    model = small_model(CosformerForConditionalGeneration, **HEADS[CosformerForConditionalGeneration])
    trainer = Trainer(model, arguments(tmp_path, label_smoothing_factor=0.1))
    batch = {"input_ids": tokens(2, 9), "labels": tokens(2, 5)}
    with pytest.raises(ValueError, match="DataCollatorForSeq2Seq"):
        trainer.compute_loss(model, dict(batch))
    batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch["labels"])  # as that collator does
    want = F.cross_entropy(model(**batch).logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    assert_close(trainer.compute_loss(model, dict(batch)), want)


def test_trainer_with_packed_batches(tmp_path: Path) -> None:
    """The collator of transformers that packs: position_ids start again, and no padding is computed."""
    model = small_model(CosformerForCausalLM, initializer_range=0.1)
    rows = [{"input_ids": tokens(n, seed=n).tolist()} for n in (3, 9, 14, 5)]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(rows)
    assert batch["input_ids"].shape == (1, 31)
    losses = [
        model(ids, labels=ids).loss * (ids.shape[1] - 1) for ids in (tokens(n, seed=n)[None] for n in (3, 9, 14, 5))
    ]
    batch = {key: value for key, value in batch.items() if key != "attention_mask"}
    assert_close(model(**batch).loss, sum(losses) / 27)
    trainer = Trainer(model, arguments(tmp_path), train_dataset=Rows(rows), data_collator=DataCollatorWithFlattening())
    assert trainer.train().global_step == 2


def test_seq2seq_trainer_generates(tmp_path: Path) -> None:
    options = HEADS[CosformerForConditionalGeneration]
    model, data = small_model(CosformerForConditionalGeneration, **options), rows_for(CosformerForConditionalGeneration)
    model.generation_config.max_new_tokens = 4
    settings = arguments(tmp_path, Seq2SeqTrainingArguments, predict_with_generate=True)
    out = Seq2SeqTrainer(model, settings, train_dataset=data).predict(data)
    assert out.predictions.shape[0] == 8


def test_lora(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = small_model(CosformerForCausalLM)
    model.save_pretrained(tmp_path / "base")
    ids = tokens(2, 12)
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj", "up_proj"], r=4)
    tuned = peft.get_peft_model(model, config)
    trained = [name for name, p in tuned.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=1.0)
    before = tuned(ids).logits.detach()
    for _ in range(2):
        tuned(ids, labels=ids).loss.backward()
        optimizer.step()
    tuned.eval()
    logits = tuned(ids).logits
    assert (logits - before).abs().max() > 1e-3
    tuned.save_pretrained(tmp_path / "lora")
    again = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "lora")
    assert_close(again.eval()(ids).logits, logits)
    assert_close(again.merge_and_unload()(ids).logits, logits, rtol=1e-4, atol=1e-4)
    assert tuned.generate(input_ids=ids, max_new_tokens=3, do_sample=False).shape == (2, 15)


def some(data: str, step: int) -> Tensor:
    """Random tokens; the same few sequences at every step; or a token that repeats itself to the end."""
    ids = tokens(4, 32, seed=0 if data == "same" else step)
    return ids[:, :1].expand(-1, 32) if data == "monotone" else ids


@pytest.mark.parametrize("data", ["random", "same", "monotone"])
@pytest.mark.parametrize("options", [{}, {"normalizer": "norm", "mlp": "swiglu"}], ids=["as-published", "modern"])
def test_300_steps_in_bf16_stay_finite(data: str, options: dict[str, Any]) -> None:
    model = small_model(CosformerForCausalLM, initializer_range=0.02, **options).to(torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = last = torch.tensor(0.0)
    for step in range(300):
        ids = some(data, step)
        last = model(ids, labels=ids).loss
        first = last.detach() if step == 0 else first
        optimizer.zero_grad()
        last.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters()), step
        optimizer.step()
    assert last.isfinite()
    assert all(p.isfinite().all() for p in model.parameters())
    assert last < {"random": 1.02, "same": 0.5, "monotone": 0.9}[data] * first  # it learns where there is something to


def test_autocast_in_bf16_trains() -> None:
    model = small_model(CosformerForCausalLM, initializer_range=0.02).train()
    ids = tokens(2, 20)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("attention", ["cosformer", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_row_of_padding_harms_no_other(attention: str, dtype: torch.dtype) -> None:
    for causal in (True, False):
        cls = CosformerForCausalLM if causal else CosformerForMaskedLM
        model = small_model(cls, attention=attention, causal=causal, initializer_range=0.1).to(dtype)
        ids, mask = tokens(3, 9), torch.ones(3, 9, dtype=torch.long)
        mask[1] = 0
        labels = ids.masked_fill(mask == 0, -100)
        out = model(ids, mask, labels=labels)
        out.loss.backward()
        assert out.logits.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        want = model(ids[[0, 2]], mask[[0, 2]]).logits
        assert_close(out.logits[[0, 2]], want, rtol=1e-2, atol=1e-2)


def test_a_row_whose_features_are_all_zero_is_finite() -> None:
    """relu kills every query and key: the attended value is 0, and so are its gradients, not NaN."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = small_model(CosformerForCausalLM).to(dtype)
        with torch.no_grad():
            for block in model.model.layers:
                for part in (block.self_attn.q_proj, block.self_attn.k_proj):
                    part.weight.zero_()
                    part.bias.fill_(-1)
        ids = tokens(2, 9)
        out = model(ids, labels=ids)
        out.loss.backward()
        assert out.logits.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (2, 12)


def test_one_token_and_unequal_lengths_train() -> None:
    model = small_model(CosformerForCausalLM).train()
    one = tokens(1, 1)
    assert model(one, labels=one).loss == 0  # nothing to predict
    ids, mask = padded([tokens(n, seed=n) for n in (1, 7, 30)], "right")
    loss = model(ids, mask, labels=ids.masked_fill(mask == 0, -100)).loss
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
