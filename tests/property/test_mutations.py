"""No config, however broken, gives anything but an answer or one named error."""

from __future__ import annotations

import copy
import json
import random
import traceback

import pytest

from gambrel import GambrelError, Step
from gambrel.api import Model
from gambrel.model.reader import read_config
from gambrel.model.sources import bundled, bundled_names

MUTATIONS = 10_000
VALUES = (
    None,
    "many",
    "",
    0,
    -1,
    1,
    3,
    10**9,
    10**30,
    0.5,
    -2.5,
    1e300,
    True,
    False,
    [],
    [1],
    ["x"] * 3,
    {},
    {"a": 1},
    [None] * 200,
)


def places(config, path=()):
    """Every key of a config and of the objects inside it."""
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def mutate(config, chance):
    """Up to three keys removed, replaced, lengthened or doubled."""
    config = copy.deepcopy(config)
    for _ in range(chance.randint(1, 3)):
        *parents, key = chance.choice(list(places(config)) or [("model_type",)])
        inner = config
        for parent in parents:
            inner = inner[parent]
        how = chance.random()
        if how < 0.25:
            inner.pop(key, None)
        elif how < 0.35 and isinstance(inner.get(key), list):
            inner[key] = [*inner[key], *inner[key][:1]]
        elif how < 0.45 and type(inner.get(key)) is int:
            inner[key] += chance.choice([-1, 1, 2])
        else:
            inner[key] = copy.deepcopy(chance.choice(VALUES))
    return config


def use(config):
    """Everything that a report asks of a model."""
    model = Model("mutated", "test", config, read_config(config))
    numbers = [model.params_total, model.params_active, model.weight_bytes(), model.state_bytes(1000)]
    for step in (Step(2, 1, 100), Step(1, 50, 60), Step(1, 1, 1, source_tokens=20, encode=True, media_tokens=10)):
        numbers += [op.cost.flops for op in model.ops(step)]
    assert all(number >= 0 for number in numbers)


def bases(request):
    """The real configs where they are at hand, else the bundled ones."""
    try:
        shared = request.getfixturevalue("shared")
    except pytest.skip.Exception:
        return [bundled(name)["config"] for name in bundled_names()]
    return [json.loads(path.read_text()) for path in sorted((shared / "configs" / "models").glob("*.json"))]


def test_ten_thousand_broken_configs(request):
    originals, chance = bases(request), random.Random(20261130)
    read, refused, broken = 0, [], {}
    for _ in range(MUTATIONS):
        config = mutate(chance.choice(originals), chance)
        try:
            use(config)
            read += 1
        except GambrelError as error:
            refused.append(str(error))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            broken.setdefault(f"{type(error).__name__}: {error} at {where.filename}:{where.lineno}"[:200], config)
    assert not broken, "\n".join(broken)
    assert all(message and "\n" not in message for message in refused)
    assert read > MUTATIONS // 20
    assert len(refused) > MUTATIONS // 20
