"""Load models over a gloo group and compute with them, one process a rank. A process of its own.

`python -m tests.scenarios.pp_worker OUT RANKS` reads cases from standard input, a JSON list: each a list of folders or
repos, one for each rank, and perhaps `{rank}` in a variant. It puts into OUT what every rank has computed. With
RANKS 0 it computes alone, of the first place of each.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from tests.scenarios.ranks import on_ranks

TOKENS = torch.arange(3, 15).view(1, 12)
NEW_TOKENS = 4


def main() -> None:
    out, ranks, cases = Path(sys.argv[1]), int(sys.argv[2]), json.load(sys.stdin)
    torch.set_num_threads(1)
    if not ranks:
        for number, case in enumerate(cases):
            torch.save(computed(case["places"][0]), out / f"{number}.0")
        return
    sys.exit(not on_ranks(ranks, lambda rank: _work(rank, ranks, cases, out)))


def _work(rank: int, ranks: int, cases: list[dict[str, Any]], out: Path) -> None:
    for number, case in enumerate(cases):
        variant = case.get("variant", "").format(rank=rank)
        torch.save(computed(case["places"][rank], variant, ranks), out / f"{number}.{rank}")


def computed(place: str, variant: str = "", ranks: int = 0) -> dict[str, Any]:
    """Return logits, generated tokens and what was missing of the model at `place`, loaded over `ranks` (0: here)."""
    options: dict[str, Any] = {"variant": variant} if variant else {}
    if ranks:
        options["distributed_config"] = DistributedConfig(pp_size=ranks)
    model, told = AutoModelForCausalLM.from_pretrained(place, dtype="auto", output_loading_info=True, **options)
    model.eval()
    with torch.no_grad():
        logits = model(TOKENS).logits
        tokens = model.generate(TOKENS, max_new_tokens=NEW_TOKENS, do_sample=False)
    return {"logits": logits, "tokens": tokens, "told": {key: sorted(map(str, names)) for key, names in told.items()}}


if __name__ == "__main__":
    main()
