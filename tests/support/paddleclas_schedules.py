"""Writes learning rates that PaddleClas's own code computes. It runs in a process of its own.

    python paddleclas_schedules.py PADDLECLAS FILE.npz

PADDLECLAS is a clone of PaddleClas, whose package on PyPI does not contain the schedules. The file has the
rates of all updates for each schedule of its configs, and for combinations of schedules and warm-ups. Each
case is stored once, with the names of the configs that have it.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import yaml

UPDATES = 5  # per epoch
METRIC = 0.5  # of each epoch, for ReduceOnPlateau
SPARE_BITS = 8  # of the 24 bits of a float32, so that the file is small
EPOCHS = 12
STEPPED = {"decay_epochs": [4, 7], "values": [0.1, 0.01, 0.001]}
CYCLE = {"base_learning_rate": 0.1, "max_learning_rate": 0.3, "step_size_up": 4}
KINDS: list[dict[str, Any]] = [
    {"name": "ConstLR", "learning_rate": 0.1},
    {"name": "Piecewise", **STEPPED},
    {"name": "Piecewise", "learning_rate": 0.1, **STEPPED},
    {"name": "MultiStepDecay", "learning_rate": 0.1, "milestones": [4, 7]},
    {"name": "Cosine", "learning_rate": 0.1, "eta_min": 0.001},
    {"name": "Linear", "learning_rate": 0.1, "end_lr": 0.01, "power": 2.0},
    {"name": "Step", "learning_rate": 0.1, "step_size": 2, "gamma": 0.5},
    {"name": "Step", "learning_rate": 0.1, "step_size": 2.4, "gamma": 0.5},
    {"name": "Step", "learning_rate": 0.1, "step_size": 1.5, "gamma": 0.5},
    *({"name": "Cyclic", **CYCLE, "mode": mode} for mode in ("triangular", "triangular2")),
    {"name": "Cyclic", **CYCLE, "mode": "exp_range", "exp_gamma": 0.97},
    {"name": "OneCycleLR", "max_learning_rate": 0.1},
    {"name": "CosineFixmatch", "learning_rate": 0.1, "num_warmup_steps": 0},
    {"name": "ReduceOnPlateau", "learning_rate": 0.1, "patience": 20},
]
WARMUPS: list[dict[str, Any]] = [
    {},
    {"warmup_epoch": 3, "warmup_start_lr": 0.01},
    {"warmup_epoch": 5},
    {"warmup_epoch": 1.5},
    {"warmup_epoch": 12},
    {"last_epoch": 0},
    {"last_epoch": 0, "warmup_epoch": 3},
]


def read_schedules(path: Path) -> Any:
    """Imports PaddleClas's module of schedules, with a stub for its logger."""
    for name in ("ppcls", "ppcls.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["ppcls.utils"].logger = logging.getLogger("paddleclas")
    logging.disable(logging.CRITICAL)
    spec = importlib.util.spec_from_file_location("schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(value: Any) -> Any:
    """Reads text such as ``1e-5``, a number for PaddleClas and text for YAML, as PaddleClas does."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (SyntaxError, ValueError):
        return value


def cases_of_configs(root: Path) -> dict[str, list[str]]:
    """Returns the names of the configs by schedule and number of epochs, as JSON."""
    cases: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.yaml")):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        optimizer = tree.get("Optimizer")
        if isinstance(optimizer, list):  # the first one is that of the model
            ((_, optimizer),) = optimizer[0].items()
        if optimizer is None or "name" not in optimizer.get("lr", {}):
            continue
        lr = {key: parse(value) for key, value in optimizer["lr"].items()}
        case = json.dumps({"lr": lr, "epochs": tree["Global"]["epochs"]}, sort_keys=True)
        cases.setdefault(case, []).append(str(path.relative_to(root)))
    return cases


def cases_of_kinds() -> list[str]:
    """Returns combinations of schedules, warm-ups and ``by_epoch``, as JSON."""
    return [
        json.dumps({"lr": {**kind, **warmup, "by_epoch": by_epoch}, "epochs": EPOCHS}, sort_keys=True)
        for kind, warmup, by_epoch in itertools.product(KINDS, WARMUPS, (False, True))
        if not ("warmup_epoch" in warmup and kind["name"] in ("OneCycleLR", "CosineFixmatch"))
    ]


def rates(schedules: Any, lr: dict[str, Any], epochs: int) -> list[float]:
    """Returns the rates of all updates, as PaddleClas's training loop reads them."""
    settings = {**copy.deepcopy(lr), "epochs": epochs, "step_each_epoch": UPDATES}
    name = settings.pop("name")
    if name == "Cyclic":  # has no defaults for these
        settings = {"warmup_epoch": 0, "warmup_start_lr": 0.0, **settings}
    schedule = getattr(schedules, name)(**settings)()
    values = []
    for _ in range(epochs):
        for _ in range(UPDATES):
            values.append(float(schedule()))
            if not schedule.by_epoch:
                schedule.step()
        if schedule.by_epoch:
            plateau = type(schedule).__name__ == "ReduceOnPlateau"
            schedule.step(METRIC) if plateau else schedule.step()
    return values


def write(clone: Path, target: Path) -> None:
    """Writes all cases. A case that PaddleClas rejects has no rates but the name of the error."""
    schedules = read_schedules(clone / "ppcls" / "optimizer" / "learning_rate.py")
    of_configs = cases_of_configs(clone / "ppcls" / "configs")
    written: dict[str, Any] = {}
    described = []
    for number, case in enumerate(dict.fromkeys((*of_configs, *cases_of_kinds()))):
        entry = {**json.loads(case), "configs": of_configs.get(case, []), "error": None}
        try:
            values = rates(schedules, entry["lr"], entry["epochs"])
        except (AssertionError, TypeError, ValueError) as error:
            entry["error"] = type(error).__name__
        else:
            bits = np.asarray(values, np.float32).view(np.uint32)
            half = np.uint32(1 << (SPARE_BITS - 1))
            written[str(number)] = (((bits + half) >> SPARE_BITS) << SPARE_BITS).view(np.float32)
        described.append(entry)
    written["cases"] = np.array(json.dumps(described))
    np.savez_compressed(target, **written)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
