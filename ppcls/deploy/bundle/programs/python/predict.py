"""Predicts the classes of images with the bundle in which this program lies, and verifies the bundle.

    python predict.py photo.jpg ...
    python predict.py verify

It needs only numpy, Pillow and onnxruntime.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # must precede the import, which writes a device id

import onnxruntime

BUNDLE = Path(__file__).resolve().parents[2]
STAGES = ("decoding", "resizing", "network", "post-processing")
NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)


class BundleRunner:
    """The model of a bundle.

    Args:
        folder: Folder of the bundle.
    """

    def __init__(self, folder: Path = BUNDLE) -> None:
        self.folder = folder
        self.bundle = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
        self.model = self.bundle["model"]
        file = str(self._find(self.model["file"]))
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def decode(self, path: str | os.PathLike[str]) -> np.ndarray:
        """Returns the upright RGB pixels of a JPEG or PNG file, [H, W, 3] uint8. Alpha is ignored."""
        with Image.open(path, formats=["JPEG", "PNG"]) as image:
            if image.mode == "CMYK":
                raise ValueError(f"{path}: CMYK is not supported; convert the image to RGB")
            upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16-bit grey
            grey = (np.asarray(upright).astype(np.uint32) + 128) // 257
            upright = Image.fromarray(grey.astype(np.uint8))
        if upright.mode in ("LA", "RGBA"):  # without a background for transparent pixels
            upright = (
                upright.getchannel(0) if upright.mode == "LA" else Image.merge("RGB", upright.split()[:3])
            )
        return np.asarray(upright.convert("RGB"))

    def run(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the outputs for one image: prepared, logits, probabilities and known_score."""
        stages = ("prepared", "logits", "probabilities", "known_score")
        names = {stage: self.model.get(stage) for stage in stages}
        names = {stage: name for stage, name in names.items() if name is not None}
        values = self.session.run(list(names.values()), {self.model["input"]: pixels[None]})
        return {stage: value[0] for stage, value in zip(names, values, strict=True)}

    def select(self, probabilities: np.ndarray) -> list[int]:
        """Returns the numbers of the selected classes, in descending order of their scores."""
        decision = self.bundle["decision"]
        order = np.argsort(-probabilities, kind="stable")
        if decision["method"] == "topk":
            return [int(number) for number in order[: decision["topk"]]]
        thresholds = np.asarray(decision["threshold"])
        if decision["method"] == "binary":
            return [int(probabilities[1] >= thresholds)]
        return [int(number) for number in order if (probabilities >= thresholds)[number]]

    def is_same_selection(
        self, selected: list[int], expected: list[int], probabilities: np.ndarray, allowed: float
    ) -> bool:
        """Returns whether two selections are equal, or differ only by scores that are nearly tied.

        Args:
            selected: Selected classes.
            expected: Expected classes.
            probabilities: Expected scores [classes].
            allowed: Difference of a score that does not matter.
        """
        decision = self.bundle["decision"]
        if decision["method"] == "topk":
            if len(selected) != len(expected):
                return False
            gaps = np.abs(probabilities[selected] - probabilities[expected])
            return bool((gaps <= 2 * allowed).all())
        changed = sorted(set(selected) ^ set(expected))
        near = np.abs(probabilities - np.asarray(decision["threshold"])) <= 2 * allowed
        decisive = [1] if changed and decision["method"] == "binary" else changed
        return bool(near[decisive].all())

    def judge(self, outputs: dict[str, np.ndarray]) -> tuple[float, float]:
        """Returns a score and its threshold. The image belongs to no class if the score is below it.

        Without a rule in the bundle, the score is the best probability, and the threshold is 0.
        """
        probabilities = outputs["probabilities"]
        score = float(outputs["known_score"] if "known_score" in outputs else probabilities.max())
        rule = self.bundle.get("rejection")
        if rule is None:
            return score, 0.0
        limit = rule["threshold"]
        return score, limit[int(probabilities.argmax())] if isinstance(limit, list) else limit

    def predict(self, path: str | os.PathLike[str]) -> list[tuple[str, float]]:
        """Returns the names and scores of the selected classes of an image file.

        If the image belongs to no class, the only name is ``unknown``, with the score of the rule.
        """
        outputs = self.run(self.decode(path))
        score, limit = self.judge(outputs)
        if score < limit:
            return [("unknown", score)]
        probabilities = outputs["probabilities"]
        classes = self.bundle["classes"]
        return [(classes[number], float(probabilities[number])) for number in self.select(probabilities)]

    def verify(self) -> bool:
        """Runs the golden samples, prints the result, and returns whether all outputs are as expected."""
        failures: dict[str, list[str]] = {}
        largest = 0.0
        for sample in self.bundle["golden"]:
            stage, text, difference = self._verify_sample(sample)
            largest = max(largest, difference)
            if stage is not None:
                failures.setdefault(stage, []).append(f"{sample['image']}: {stage}: {text}")
        total = len(self.bundle["golden"])
        failed = sum(map(len, failures.values()))
        if not failed:
            print(f"PASS: {total} of {total}, largest difference {largest:.1e}")
            return True
        first = next(stage for stage in STAGES if stage in failures)
        print(f"FAIL: {total - failed} of {total}; first stage that differs: {first}")
        print(failures[first][0])
        return False

    def _verify_sample(self, sample: dict[str, Any]) -> tuple[str | None, str, float]:
        """Returns the first stage that differs, with numbers, and the difference of a probability."""
        limits = self.bundle["tolerances"]
        decoded = self.decode(self._find(sample["image"]))
        shape = (sample["height"], sample["width"], 3)
        expected = self._expected(sample["decoded"], np.uint8).reshape(shape)
        exact = not sample["image"].endswith(".jpg")
        outputs = self.run(expected)
        checks = [("decoding", decoded, expected, (0, 0) if exact else limits["decoding"])]
        if "prepared" in outputs and sample["prepared"]:
            values = self._expected(sample["prepared"]).reshape(self.bundle["prepared_shape"])
            checks.append(("resizing", outputs["prepared"], values, limits["resizing"]))
        if "logits" in outputs and sample["logits"]:
            checks.append(
                ("network", outputs["logits"], self._expected(sample["logits"]), (limits["logits"],) * 2)
            )
        probabilities = self._expected(sample["probabilities"])
        allowed = (limits["probabilities"],) * 2
        checks.append(("post-processing", outputs["probabilities"], probabilities, allowed))
        whole = outputs if np.array_equal(decoded, expected) else self.run(decoded)
        difference = float(np.abs(whole["probabilities"] - probabilities).max())
        for stage, actual, value, (most, mean) in checks:
            if actual.shape != value.shape:
                return stage, f"expected the shape {value.shape}, got {actual.shape}", difference
            apart = np.abs(actual.astype(np.float64) - value)
            if not (apart.max() <= most and apart.mean() <= mean):
                numbers = f"largest difference {apart.max():.2g} (allowed {most:.2g})"
                return stage, f"{numbers}, mean {apart.mean():.2g} (allowed {mean:.2g})", difference
        selected = self.select(outputs["probabilities"])
        if self.bundle.get("rejection") is not None:
            score, limit = self.judge(outputs)
            most = limits["known_score"] if "known_score" in outputs else allowed[0]
            if not abs(score - sample["known_score"]) <= most:
                text = f"expected the score {sample['known_score']:.4g} for unknown, got {score:.4g}"
                return "post-processing", text, difference
            if (score < limit) != sample["unknown"] and abs(sample["known_score"] - limit) > 2 * most:
                return "post-processing", f"expected unknown {sample['unknown']}", difference
        if not self.is_same_selection(selected, sample["classes"], probabilities, allowed[0]):
            return "post-processing", f"expected the classes {sample['classes']}, got {selected}", difference
        return None, "", difference

    def _expected(self, name: str, dtype: Any = np.float32) -> np.ndarray:
        return np.fromfile(self._find(name), np.dtype(dtype).newbyteorder("<"))

    def _find(self, name: str) -> Path:
        """Returns the path of a file of the bundle."""
        if not NAME.fullmatch(name):
            raise ValueError(f"bundle.json: expected a path in the bundle, got {name!r}")
        return self.folder / name


def main(arguments: list[str]) -> int:
    """Runs the program, and returns its exit code: 0, or 3 if the verification fails."""
    runner = BundleRunner()
    if arguments == ["verify"]:
        return 0 if runner.verify() else 3
    if not arguments:
        print(__doc__)
        return 2
    code = 0
    for path in arguments:
        try:
            answer = runner.predict(path)
        except (OSError, ValueError) as error:
            print(f"{path}: error: {error}")
            code = 1
            continue
        if answer and answer[0][0] == "unknown":
            print(f"{path}: unknown, score {answer[0][1]:.4f}")
        else:
            print(f"{path}: {', '.join(f'{name} {score:.2%}' for name, score in answer)}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
