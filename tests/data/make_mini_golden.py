"""Makes mini_golden.json: greedy continuations and bits per byte of the bundled model by transformers (float32, cache on).

Run: HF_HUB_OFFLINE=1 python tests/data/make_mini_golden.py
"""

import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import DynamicCache, Qwen4ExpForCausalLM

from predictors.reference import load_reference

FOLDER = Path(__file__).parents[2] / "data" / "qwen4exp-mini-4bit"
PROMPTS = ((20, 12), (7000, 48), (14000, 160), (21000, 400), (28000, 12), (35000, 48), (42000, 160), (49000, 400))
"""(first token within eval.txt, number of tokens)."""
NUM_STEPS = 64
WINDOW = 512
NUM_WINDOWS = 1


@torch.inference_mode()
def greedy(model: Qwen4ExpForCausalLM, tokens: torch.Tensor, start: int, num_tokens: int) -> dict:
    """Greedy tokens after a prompt, with each step's margin between the best two logits."""
    cache = DynamicCache(config=model.config)
    fed, chosen, margins = tokens[None, start : start + num_tokens], [], []
    for _ in range(NUM_STEPS):
        best = model(fed, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1].topk(2)
        fed = best.indices[None, :1]
        chosen.append(int(fed))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
    return {"start": start, "num_tokens": num_tokens, "tokens": chosen, "margins": margins}


@torch.inference_mode()
def bits_per_byte(model: Qwen4ExpForCausalLM, tokens: torch.Tensor, token_bytes: torch.Tensor) -> float:
    """Over the first windows, each from an empty state."""
    nats, num_bytes = 0.0, 0
    for start in range(0, NUM_WINDOWS * WINDOW, WINDOW):
        window, targets = tokens[start : start + WINDOW], tokens[start + 1 : start + WINDOW + 1]
        logits = model(window[None], use_cache=False).logits[0]
        nats += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        num_bytes += int(token_bytes[targets].sum())
    return nats / math.log(2) / num_bytes


def main() -> None:
    """Writes the file beside this one."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokens = torch.tensor(tokenizer.encode((FOLDER / "eval.txt").read_text()).ids)
    # byte-level BPE: one character of a token's text stands for one byte; the first three tokens are special
    token_bytes = [0 if i < 3 else len(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]
    model = load_reference(FOLDER)
    golden = {
        "window": WINDOW,
        "token_bytes": token_bytes,
        "bits_per_byte": {str(NUM_WINDOWS): bits_per_byte(model, tokens, torch.tensor(token_bytes))},
        "greedy": [greedy(model, tokens, *prompt) for prompt in PROMPTS],
    }
    Path(__file__).with_name("mini_golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
