"""Made-up n-gram pages of the twin's passes."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from workbench.simulate.passes import Pass


def drawn_pages(whole: Iterable[Pass], *, layer: int, per_token: int, reuse: float, seed: int) -> list[Pass]:
    """The passes with made-up pages for `layer`, `per_token` a token.

    With chance `reuse` a page is one that an earlier token needed, any of them alike; else it is a new one.
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
