"""The process that learns a vocabulary: `python -P learner.py models/tokenizers.py`, asked and answering in JSON.

Run as a file, like the one it is given: importing the package would import torch, which takes longer than learning.
"""

import json
import os
import runpy
import sys
import threading
from pathlib import Path


def main(tokenizers: str) -> None:
    """Answers null, or in words why it refuses. Ends when its input does: that of a parent that was killed."""
    text, out, size, options = json.loads(sys.stdin.readline())
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    learn = runpy.run_path(tokenizers)["train_tokenizer"]
    refused = None
    try:
        learn([Path(text)], size, **options).save_pretrained(out)
    except ValueError as error:
        refused = str(error)
    print(json.dumps(refused), flush=True)  # noqa: T201
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
