"""Random histories against the naive model, and the test of this test: with the invalidation of one collection
suppressed, it must notice. `python -m tests.property.run_oracle` plays more."""

from __future__ import annotations

import pytest

from ambientd.index.declarations import Derived
from ambientd.index.world import DECLARATIONS
from tests.property.oracle import first_difference

BATCHES = 60
SEEDS_PER_TEST = 25
TESTS = 10
"""25 × 10 histories of 60 batches are some 52,000 events."""

READERS = sorted({item.name for item in DECLARATIONS if isinstance(item, Derived)})


@pytest.mark.parametrize("part", range(TESTS))
def test_random_histories_end_as_the_model_says(part: int) -> None:
    events = 0
    for seed in range(part * SEEDS_PER_TEST, (part + 1) * SEEDS_PER_TEST):
        found, played = first_difference(seed, BATCHES)
        assert not found, "\n".join(found[:20])
        events += played
    assert events > 4_000


@pytest.mark.parametrize("name", READERS)
def test_a_collection_that_does_not_notice_changes_is_noticed(name: str) -> None:
    assert any(first_difference(seed, 2 * BATCHES, suppressed=[name])[0] for seed in range(60)), (
        f"{name} reads something whose change makes no difference, or no history reaches it"
    )
