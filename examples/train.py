"""Trains, evaluates and looks at a model from Python: what examples/train.ipynb does in a notebook.

    python examples/train.py

The data are scikit-learn's digits, made here where they are missing. Nothing imports Paddle before
`build_state`, for it reads its settings when it is imported.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls import Predictor, build_state, evaluate, fit, load_config
from ppcls.dataset_tools.digits import make_digits

make_digits(Path("dataset/digits"))
config = load_config("configs/quickstart.yaml", {"Global.epochs": 2, "Global.output_dir": "output/example"})
state = build_state(config)  # model, optimizer and data, to look at
print(f"{len(state.model.parameters())} arrays of weights, {len(state.loader)} batches an epoch")
result = fit(state)  # trains, evaluates, saves; Ctrl-C saves, too
print(f"best top1 {result.best:.4f}: {result.best_model}")
print("loss by epoch:", [round(record["loss"], 3) for record in result.history if record["kind"] == "eval"])
print("the best model on DataLoader.Eval:", evaluate(config).metrics)
predictor = Predictor(result.best_model)
print("a seven:", *predictor.predict([Path("dataset/digits/images/7/0007.jpg").read_bytes()]))
