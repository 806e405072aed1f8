"""Synthetic n-gram pages for the twin's passes."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from workbench.simulate.passes import Pass


def drawn_pages(whole: Iterable[Pass], *, layer: int, per_token: int, reuse: float, seed: int) -> list[Pass]:
    """The passes, with `per_token` synthetic pages per token for `layer` in place of their own pages.

    With probability `reuse` a page is drawn uniformly from the pages that earlier tokens needed; otherwise it is a new page.
    """
    rng = np.random.default_rng(seed)
    num_known = 0
    made = []
    for each in whole:
        keys: dict[int, None] = {}
        for is_old, draw in rng.random((each.num_tokens * per_token, 2)).tolist():
            if num_known and is_old < reuse:
                keys[int(draw * num_known)] = None
            else:
                keys[num_known] = None
                num_known += 1
        made.append(replace(each, pages={layer: tuple(keys)}))
    return made
