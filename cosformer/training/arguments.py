"""How transformers is told where a run is trained, and in how many processes."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.utils import logging as transformers_logging

from cosformer.training.engine import fsdp_wanted
from cosformer.training.recipe import Recipe
from cosformer.training.recipe_fields import BadRecipe


def arguments_for(recipe: Recipe, run: Path, device: str) -> TrainingArguments:
    """Of transformers: where and in how many processes. When to log, evaluate and save is ours."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={device!r}: use auto, cpu or cuda (CUDA_VISIBLE_DEVICES chooses among several)")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but torch sees no CUDA device: use cpu, or see `cosformer env`")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    train = recipe.train
    workers = train.workers
    if workers < 0:
        workers = 2 if device != "cpu" and torch.cuda.is_available() else 0
    options: dict[str, Any] = {"fsdp": True, "fsdp_config": _fsdp()} if train.fsdp else {}
    args = TrainingArguments(
        output_dir=str(run), use_cpu=device == "cpu" or not torch.cuda.is_available(), seed=recipe.seed,
        per_device_train_batch_size=1, max_steps=1, max_grad_norm=train.clip, logging_strategy="no", eval_strategy="no",
        save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False, log_level="error",
        logging_nan_inf_filter=False, ignore_data_skip=True, dataloader_num_workers=workers,
        ddp_find_unused_parameters=False, average_tokens_across_devices=True,
        gradient_checkpointing=train.gradient_checkpointing, **options,
    )  # fmt: skip
    if train.fsdp and args.world_size == 1:
        raise BadRecipe(
            "train.fsdp=true in one process: it shards over several; use torchrun or accelerate launch, or --set "
            "train.fsdp=false, with which a run may also be resumed"
        )
    if args.n_gpu > 1:
        args._n_gpu = 1  # several GPUs in one process would be DataParallel: they are used through a launcher
    return args


def _fsdp() -> dict[str, Any]:
    return {"version": 2, "transformer_layer_cls_to_wrap": ["CosformerBlock"], "state_dict_type": "FULL_STATE_DICT"}


def check_graphs(recipe: Recipe, args: TrainingArguments) -> None:
    """Gradients of a graph lie where its next replay writes: they cannot be added up, and they are not sharded."""
    part, share, why = recipe.train.micro_batch, recipe.train.batch // args.world_size, ""
    if args.device.type != "cuda":
        why = f"on {args.device.type}: only CUDA has them; use auto"
    elif 0 < part < share:
        why = f"with train.micro_batch={part} of {share}: gradients of graphs cannot be added up; use on, or 0 there"
    elif args.world_size > 1:
        why = f"in {args.world_size} processes: that was never tried; use on"
    elif fsdp_wanted(recipe):
        why = "with sharded weights, which are gathered anew for every step; use on"
    if recipe.train.compile == "graphs" and why:
        raise BadRecipe(f"train.compile='graphs' {why}")
