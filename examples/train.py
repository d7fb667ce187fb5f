"""Trains, evaluates and uses a model from Python, like the notebook examples/train.ipynb.

    python examples/train.py

The data set is scikit-learn's digits. The script writes it to a folder if the folder is missing. Do not
import Paddle before `build_state`, because Paddle reads its settings when it is imported.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls import Predictor, build_state, evaluate, fit, load_config
from ppcls.dataset_tools.digits import make_digits

make_digits(Path("dataset/digits"))
config = load_config("configs/quickstart.yaml", {"Global.epochs": 2, "Global.output_dir": "output/example"})
state = build_state(config)  # model, optimizer and data
print(f"{len(state.model.parameters())} weight tensors, {len(state.loader)} batches per epoch")
result = fit(state)  # trains, evaluates and saves; Ctrl-C also saves a checkpoint
print(f"best top1 {result.best:.4f}: {result.best_model}")
print("loss by epoch:", [round(record["loss"], 3) for record in result.history if record["kind"] == "eval"])
print("the best model on DataLoader.Eval:", evaluate(config).metrics)
predictor = Predictor(result.best_model)
print("a seven:", *predictor.predict([Path("dataset/digits/images/7/0007.jpg").read_bytes()]))
