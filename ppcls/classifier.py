"""The class `Classifier`, which trains, evaluates, applies and exports a model, for example in a notebook."""

from __future__ import annotations

import html
import io
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from PIL import Image

from ppcls import api
from ppcls.cli.arguments.hints import show_in_python
from ppcls.cli.arguments.options import read_options
from ppcls.cli.eval import EvalOptions, check_data, check_images, read_checkpoint_config
from ppcls.cli.short_options import apply_arguments
from ppcls.cli.train import TrainOptions
from ppcls.commands import command_line
from ppcls.config.base.overrides import Override, read_overrides
from ppcls.config.base.problems import show
from ppcls.config.base.tree import node_at
from ppcls.deploy.infer import rank_columns
from ppcls.deploy.models.description import Precision
from ppcls.deploy.models.source import ModelSource, find_checkpoint, find_source, run_folder
from ppcls.deploy.pictures import Picture, is_single, label_of, list_pictures, read_picture
from ppcls.deploy.predictor import Predictor
from ppcls.errors import ImageError, UserError, counted
from ppcls.files import for_terminal
from ppcls.files.outputs import check_suffix, local_output
from ppcls.files.tables import format_table
from ppcls.files.urls import local_path
from ppcls.postprocess.guesses import ExplainsGuesses
from ppcls.postprocess.results import Classification
from ppcls.recipe.load import ConfigSource
from ppcls.recipe.resume_config import choose_config
from ppcls.registry import suggest_architecture
from ppcls.runtime.launch import ppcls_command
from ppcls.storage.models import model_path
from ppcls.zoo import ZOO

_CONFIG = "finetune"


class Classifier(ExplainsGuesses):
    """An image classifier: an architecture to train, or a trained or exported model.

    Args:
        model: Name of an architecture such as ``ResNet50``, or the path of a run's output folder, a
            checkpoint or an exported model.
        pretrained: Initial weights of an architecture: True for the published ImageNet weights, the path of a
            file of weights, or False to train from scratch. By default, training on a small data set starts
            from the published weights if they exist and can be downloaded.
        device: ``auto``, ``gpu`` or ``cpu``.
        trust: Whether a model in a folder may import Python modules, and read and write paths that its config
            names, such as its validation images. Use it for models whose source you trust.

    Attributes:
        model: Path of the trained or exported model; before training, the name of the architecture.

    Raises:
        UserError: There is no such architecture, file or folder.
    """

    guessed_attributes: ClassVar[Mapping[str, str]] = {
        "class_names names labels": "use classes",
        "num_classes nc n_classes": "use len(model.classes)",
        "fit finetune fine_tune learn": "use train(folder)",
        "val validate eval test score get_metrics": "use evaluate()",
        "predict_proba infer inference forward": (
            "use predict(images, topk=len(model.classes)), whose results have the scores of all classes"
        ),
        "load from_pretrained load_weights load_model restore": "use Classifier(FOLDER), the folder of a run",
        "save save_pretrained save_model save_weights": (
            "train() saves the model in the output folder of the run; export() writes it for other programs"
        ),
        "to cuda cpu device": "use Classifier(MODEL, device='gpu')",
        "half float16 fp16 quantize int8": (
            "`ppcls export --precision float16` or int8 writes a smaller model for Classifier(FOLDER)"
        ),
        "benchmark speed": "`ppcls models measure NAME --speed` measures an architecture",
        "history best plot results": "these are attributes of the run that train() returns",
        "info summary parameters": "`ppcls models list NAME` prints the size of an architecture",
        "embed features": "use Predictor(FOLDER).embed(images) of an embedding model",
        "explain gradcam cam": "`ppcls infer --explain FOLDER` writes heat maps",
        "add_class": "train a new run with all classes: Classifier(ARCHITECTURE, pretrained=FOLDER)",
        "confusion_matrix confusion": "confusion.csv in the output folder of the run contains it",
        "mistakes errors": "mistakes.csv in the output folder of the run lists them",
        "tune": "`ppcls tune` searches for the best settings of a config",
    }
    guessed_arguments: ClassVar[Mapping[str, str]] = {
        "num_classes nc n_classes class_num classes": "the folder of train() determines the classes",
        "weights checkpoint ckpt": "use pretrained='weights.pdparams'",
        "top_k k top": "use topk=5",
        "url download allow_urls from_url fetch": "use urls=True to download images",
        "conf threshold min_score confidence min_conf": "use predict(...).above(0.5)",
        "source image img x paths path input inputs": "pass the images as the first argument",
        "batch_size batch bs": "batches are chosen automatically; Infer.batch_size of the config sets them",
        "save save_txt save_dir out output": "use predict(...).to_csv('classes.csv')",
        "device gpu cuda": "use Classifier(MODEL, device='gpu')",
        "augment tta": "`ppcls infer --tta flip` averages several views of each image",
        "split": "use data=FOLDER for other images",
        "onnx torchscript engine": "use export('onnx')",
        "verbose show stream progress": "leave it out",
        "imgsz img_size image_size size": "the size is that of the model; train(image_size=224) sets it",
        "trust": "use Classifier(FOLDER, trust=True)",
        "half int8 quantize dynamic opset simplify": "`ppcls export` has more formats and precisions",
    }

    @show_in_python
    def __init__(
        self,
        model: str | Path = "ResNet50",
        *,
        pretrained: bool | str | Path = "auto",
        device: Literal["auto", "gpu", "cpu"] = "auto",
        trust: bool = False,
    ) -> None:
        self.model = str(model_path(str(model)))
        (device_option,) = (option for option in read_options(TrainOptions) if option.field == "device")
        if problem := device_option.reject(str(device)):
            raise UserError(f"device: {problem}")
        self._trust = trust
        self._pretrained = pretrained
        self._device = device
        self._architecture = None if Path(self.model).exists() else self.model
        self._predictor: Predictor | None = None
        if self._architecture is not None and self._architecture not in ZOO:
            known = suggest_architecture(self._architecture, list(ZOO))
            raise UserError(f"{model}: no such architecture, file or folder{known}")

    @classmethod
    @show_in_python
    def from_bundle(
        cls,
        path: str | Path,
        *,
        verify: bool = False,
        device: Literal["auto", "gpu", "cpu"] = "auto",
    ) -> Classifier:
        """Returns the classifier of a bundle, which ``ppcls export --format bundle`` wrote.

        Args:
            path: Folder of the bundle. Extract a zip file with ``ppcls verify FILE.zip --extract FOLDER``.
            verify: Whether to run the golden samples first.
            device: ``auto``, ``gpu`` or ``cpu``.

        Raises:
            UserError: The bundle cannot be read or is damaged, or ``verify`` is set and an output differs.
        """
        from ppcls.deploy.bundle.schema import check_files, read_bundle_file
        from ppcls.deploy.bundle.verify import verify_folder

        folder = Path(path)
        if folder.is_file():
            raise UserError(
                f"{folder}: expected the folder of a bundle, found a file; extract a zip file with "
                f"{command_line('verify', folder, '--extract', 'FOLDER')}"
            )
        if verify:
            verify_folder(folder)
        else:
            check_files(folder, read_bundle_file(folder))
        return cls(folder, device=device)

    @show_in_python
    def train(
        self,
        data: str | Path | None = None,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        image_size: int | None = None,
        output: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        resume: bool | str | Path = False,
        **options: Any,
    ) -> TrainingRun:
        """Trains the architecture on a folder of images, then uses the best model for the other methods.

        Args:
            data: Folder with one subfolder of images per class; not needed with ``resume``.
            epochs: Number of epochs.
            batch_size: Number of images per batch.
            lr: Learning rate.
            image_size: Side of the images in pixels.
            output: Output folder of the run; by default ``runs/ARCHITECTURE``.
            overrides: Values of further config keys, such as ``{"Optimizer.train_only": "classifier"}``.
            resume: Whether to continue the run in ``output``, with its settings, which other arguments
                change; or the path of the run or checkpoint to continue.
            **options: Other options of ``ppcls train`` that set keys of the config, such as ``amp``,
                ``freeze``, ``mixup``, ``optimizer``, ``seed`` and ``workers``.

        Raises:
            UserError: The model is already trained, an option is unknown or invalid, or training fails.
        """
        name = self._architecture
        typed = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "image_size": image_size, **options}
        if resume:
            source = self._read_resumed(data, output, resume)
            if name is not None and node_at(source.tree, "Arch.name") != name:
                typed["model"] = name
            if self._device != "auto":
                typed["device"] = self._device
            apply_arguments("train", TrainOptions, typed, source)
            source.apply(read_overrides(overrides or {}))
            return self._fit(source, resumed=True)
        if name is None and find_checkpoint(Path(self.model), trust=self._trust) is None:
            raise UserError(
                f"{self.model} is an exported model, which can't be trained; use its run: "
                "Classifier(ARCHITECTURE, pretrained=FOLDER)"
            )
        if name is None:
            raise UserError(
                f"{self.model} is a trained model; to continue its run, use train(resume=True); to start a "
                f"new run from its weights, use Classifier(ARCHITECTURE, pretrained={self.model!r})"
            )
        if not isinstance(data, (str, Path)):
            other = (
                "" if data is None else f", got {type(data).__name__}; docs/own-data.md says how to use lists"
            )
            raise UserError(f"data: expected a folder with one subfolder of images per class{other}")
        pretrained = None if self._pretrained in (False, "auto") else self._pretrained
        pretrained = str(pretrained) if isinstance(pretrained, Path) else pretrained
        values: dict[str, Any] = {
            "data": str(data),
            "model": name,
            "pretrained": pretrained,
            "output": str(output or f"runs/{name}"),
            "device": self._device,
            **typed,
        }
        source = ConfigSource.read(_CONFIG)
        source.fits_warmup = True
        apply_arguments("train", TrainOptions, values, source)
        if self._pretrained is False:
            source.apply([Override.of_value("Arch.pretrained", False, "pretrained=False")])
        source.apply(read_overrides(overrides or {}))
        return self._fit(source, resumed=False)

    def _read_resumed(
        self, data: str | Path | None, output: str | Path | None, resume: bool | str | Path
    ) -> ConfigSource:
        """Returns the config of the run to continue, or of a new run if the output folder has none.

        Raises:
            UserError: There is no such run.
        """
        run = str(resume)
        if resume is True:
            run = "auto"
            folder = run_folder(Path(self.model)) if self._architecture is None else None
            if output is None:
                output = folder or f"runs/{self._architecture or self.model}"
        options = TrainOptions(
            data=None if data is None else str(data),
            resume=run,
            output=None if output is None else str(output),
        )
        source, applied = choose_config(options, _CONFIG)
        if not applied:  # a new run
            values = {"data": options.data, "resume": run, "output": options.output}
            apply_arguments("train", TrainOptions, values, source)
        return source

    def _fit(self, source: ConfigSource, *, resumed: bool) -> TrainingRun:
        """Trains with a config, and uses the best model from now on."""
        config = source.load()
        if self._architecture != self.model:
            print(self._describe_start(resumed, local_path(config.Global.output_dir)))  # noqa: T201
        name = node_at(source.tree, "Arch.name")
        images = node_at(source.tree, "DataLoader.Train.dataset.image_root")
        print(f"loading Paddle, then training {name} on {images} ...", flush=True)  # noqa: T201
        result = api.fit(config)
        self.model = str(result.best_model or result.latest or result.output_dir)
        self._trust = True
        self._predictor = None
        return TrainingRun(result)

    def _describe_start(self, resumed: bool, output: Path) -> str:
        """Returns a line that says from which weights a second training starts."""
        if resumed:
            return f"this continues the run in {output}, up to the new number of epochs"
        return (
            f"this is a new run, which does not continue from {self.model}; to continue, use resume=True and "
            f"more epochs, or Classifier({self._architecture!r}, pretrained={self.model!r})"
        )

    @property
    def classes(self) -> list[str]:
        """Names of the classes in the order of their labels; empty if the model does not store them.

        Raises:
            UserError: The model is not trained.
        """
        self._require_model()
        if self._predictor is not None:
            return list(self._predictor.names or ())
        return list(find_source(Path(self.model), trust=self._trust).description.names or ())

    @show_in_python
    def predict(
        self,
        images: Picture | Iterable[Picture],
        topk: int | None = None,
        *,
        urls: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Classification | Predictions:
        """Predicts the classes of one or several images, and returns their names and scores.

        Args:
            images: One image, several images, a folder, a pattern such as ``photos/**/*.jpg``, or a DataFrame
                with a column of paths. An image is the path of a file, the bytes of a file, a PIL image, or
                an array or tensor of pixels, uint8 or floats from 0 to 1, with the shape [H, W], [H, W, 3]
                (RGB) or [H, W, 4] (RGBA).
            topk: Number of classes per image; by default the number in the model's config.
            urls: Whether to download images whose addresses (``https://…``) are given.
            on_error: ``raise`` ends with an error if one of the images can't be read. ``skip`` predicts the
                other images; the attribute ``errors`` of the result has the reasons.

        Raises:
            UserError: The model is not trained, or a file is missing.
            ImageError: An image can't be decoded. It is a `UserError` and a `ValueError`.
        """
        if on_error not in ("raise", "skip"):
            raise UserError(f"on_error: expected 'raise' or 'skip', got {show(on_error)}")
        single = is_single(images)
        pictures = list_pictures(images, lambda line: print(line, flush=True))  # noqa: T201
        names = [label_of(picture, number) for number, picture in enumerate(pictures)]
        skips = on_error == "skip" and not single
        read = [_try_to_read(picture, urls=urls) for picture in pictures]
        if not skips:
            _raise_first(names, read)
        predicted = iter(
            self._load().try_predict(
                [picture for picture in read if not isinstance(picture, Exception)], topk
            )
        )
        tried = [picture if isinstance(picture, Exception) else next(predicted) for picture in read]
        if not skips:
            _raise_first(names, tried)
        results = [result for result in tried if isinstance(result, Classification)]
        errors = {
            name: _reason(name, result)
            for name, result in zip(names, tried, strict=True)
            if isinstance(result, Exception)
        }
        if single:
            return results[0]
        return Predictions(results, [name for name in names if name not in errors], errors)

    @show_in_python
    def evaluate(
        self, data: str | Path | None = None, *, batch_size: int | None = None, workers: int | None = None
    ) -> Evaluation:
        """Evaluates the trained model.

        Args:
            data: Folder of images; by default the validation images of the training run. All images of
                another folder are evaluated, but only the validation images of the training folder.
            batch_size: Number of images per batch.
            workers: Number of processes or threads that load images.

        Raises:
            UserError: The model is not trained, is an exported model, or the data are invalid.
        """
        self._require_model()
        if find_checkpoint(Path(self.model), trust=self._trust) is None:
            raise UserError(
                f"{self.model}: expected a run's output folder or a checkpoint folder to evaluate; train the "
                "model, or use Classifier(FOLDER)"
            )
        values = {
            "data": str(data) if data is not None else None,
            "batch_size": batch_size,
            "workers": workers,
            "device": self._device,
        }
        source = read_checkpoint_config(Path(self.model), trust=self._trust)
        apply_arguments("eval", EvalOptions, values, source)
        config = source.load()
        check_data(source)
        check_images(source)
        result = api.evaluate(config)
        return Evaluation(result.loss, result.metrics, result.images, result.seconds)

    @show_in_python
    def export(
        self,
        format: Literal["paddle", "ppcls", "onnx"] = "paddle",
        output: str | Path | None = None,
        *,
        preprocess: bool | Literal["all", "normalize"] = False,
        precision: Precision = "float32",
    ) -> Path:
        """Exports the model for Paddle Inference, for ppcls itself or as ONNX, and returns the folder.

        Args:
            format: ``paddle``, ``ppcls`` or ``onnx``.
            output: New folder; by default ``inference``, ``ppcls`` or ``onnx`` in the output folder of the
                run.
            preprocess: Preprocessing that the exported model contains: True or ``all`` for all transforms,
                ``normalize`` for NormalizeImage only, False for none.
            precision: Precision in which the exported model computes, see ``ppcls export --precision``.

        Raises:
            UserError: The model is not trained, is already exported, or the folder is not empty; or the
                format or the device does not support the precision.
        """
        from ppcls.runtime import session

        self._require_model()
        overrides = [f"Global.device={self._device}"]
        source = find_source(Path(self.model), overrides, trust=self._trust)
        names = {"paddle": "inference", "ppcls": "ppcls", "onnx": "onnx"}
        if not isinstance(format, str) or format.lower() not in names:
            raise UserError(
                f"format: expected one of {', '.join(names)}, got {show(format)}; `ppcls export` has "
                "more formats, and output sets the folder"
            )
        format = cast(Literal["paddle", "ppcls", "onnx"], format.lower())
        if output is None:
            folder = self._run_folder(source) / names[format]
        else:
            folder = local_output("output", output)
        with session.embedded(source.run) as runtime:
            from ppcls.deploy.export.export import PrecisionSettings, export_model

            contained = "all" if preprocess is True else preprocess or None
            settings = PrecisionSettings(precision)
            export_model(source, folder, format, preprocess=contained, settings=settings, runtime=runtime)
        return folder

    def _run_folder(self, source: ModelSource) -> Path:
        """Returns the output folder of the run that trained the model.

        Raises:
            UserError: It is unknown.
        """
        if source.trust:
            return local_path(source.run.output_dir)
        run = run_folder(Path(self.model))
        if run is None:
            raise UserError(f"{self.model}: not in the output folder of a run; set output to a new folder")
        return run

    @show_in_python
    def serve(
        self, port: int = 8000, host: str = "127.0.0.1", *, wait: bool = True
    ) -> subprocess.Popen[bytes]:
        """Serves the model over HTTP in a separate process, and returns the process.

        Args:
            port: Port to listen on.
            host: Address to listen on; ``0.0.0.0`` for all networks.
            wait: Whether to wait until the server stops; Ctrl-C stops it. If False, call ``terminate()``
                on the returned process to end the server.

        Raises:
            UserError: The model is not trained.
        """
        self._require_model()
        where = ["--port", str(port), "--host", host, "-o", f"Global.device={self._device}"]
        where += ["--trust"] if self._trust else []
        command = ppcls_command("serve", "--model", self.model, *where)
        server = subprocess.Popen(command)  # noqa: S603
        if wait:
            try:
                server.wait()
            except KeyboardInterrupt:
                server.terminate()
                server.wait()
        return server

    def __repr__(self) -> str:
        state = ", not trained" if not self._usable else ""
        return f"Classifier({for_terminal(self.model)}{state})"

    @property
    def _usable(self) -> bool:
        return self.model != self._architecture or self._pretrained is True

    def _require_model(self) -> None:
        if not self._usable:
            raise UserError(
                f"{self.model} is not trained yet: call train(folder), or use "
                f"Classifier({self.model!r}, pretrained=True) for the published ImageNet weights"
            )

    def _load(self) -> Predictor:
        self._require_model()
        if self._predictor is None:
            overrides = [f"Global.device={self._device}"]
            self._predictor = Predictor(find_source(Path(self.model), overrides, trust=self._trust))
        return self._predictor


@dataclass(frozen=True, repr=False)
class TrainingRun(ExplainsGuesses):
    """A finished training run.

    Attributes:
        result: Best metric, paths and records of the run.
    """

    guessed_attributes: ClassVar[Mapping[str, str]] = {
        "best_model model checkpoint weights": "use result.best_model, or the Classifier itself",
        "output save_dir folder path dir": "use output_dir",
        "metrics accuracy top1 score results losses loss": "use best or history",
        "report show html": "use output_dir / 'report.html'",
        "confusion_matrix confusion": "use output_dir / 'confusion.csv'",
        "mistakes errors": "use output_dir / 'mistakes.csv'",
        "to_dataframe to_df": "use pandas.DataFrame(run.history)",
        "predict evaluate export": "these are methods of the Classifier",
    }

    result: api.FitResult

    @property
    def best(self) -> float | None:
        """Value of the first metric in the best evaluation; None without evaluation."""
        return self.result.best

    @property
    def output_dir(self) -> Path:
        """Output folder of the run."""
        return self.result.output_dir

    @property
    def history(self) -> list[dict[str, Any]]:
        """Records of training and evaluation, one dictionary each."""
        return self.result.history

    def plot(self) -> Plot:
        """Returns a picture of the curves of loss and metrics, which a notebook shows."""
        return Plot((self.output_dir / "curves.png").read_bytes())

    def __repr__(self) -> str:
        best = "no evaluation" if self.best is None else f"best {self.best:.4f}"
        return f"TrainingRun({best}; report: {self.output_dir / 'report.html'})"

    def _repr_html_(self) -> str:
        evaluations = [record for record in self.history if record["kind"] == "eval"]
        names = list(evaluations[0]["metrics"]) if evaluations else []
        rows = [
            [
                str(record["epoch"]),
                _number(record["loss"]),
                *(_number(record["metrics"][name]) for name in names),
            ]
            for record in evaluations
        ]
        return f"<p>{html.escape(repr(self))}</p>" + _table(["epoch", "loss", *names], rows)


@dataclass(frozen=True, repr=False)
class Plot:
    """A picture that a notebook shows.

    Attributes:
        png: Content of the PNG file.
    """

    png: bytes

    def save(self, path: str | Path) -> None:
        """Writes the PNG file.

        Raises:
            UserError: The name does not end in ``.png``, or is an address in object storage.
        """
        file = local_output("path", path)
        check_suffix("path", file, ".png")
        file.write_bytes(self.png)

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        width, height = Image.open(io.BytesIO(self.png)).size
        return f"Plot({width}×{height} pixels)"


@dataclass(frozen=True, repr=False)
class Evaluation(ExplainsGuesses):
    """The result of an evaluation.

    Attributes:
        loss: Mean loss.
        metrics: Value of each metric, by name.
        images: Number of images.
        seconds: Duration in seconds.
    """

    guessed_attributes: ClassVar[Mapping[str, str]] = {
        "accuracy acc top1 top5 score results results_dict": "use metrics, such as metrics['top1']",
        "confusion_matrix confusion": "`ppcls eval --confusion FILE` writes it",
        "mistakes errors": "`ppcls eval --errors FILE` lists them",
    }

    loss: float
    metrics: dict[str, float]
    images: int
    seconds: float

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return (
            f"Evaluation({values}, loss {self.loss:.4f}; {counted(self.images, 'image')} in "
            f"{self.seconds:.1f} s)"
        )

    def _repr_html_(self) -> str:
        values = {**self.metrics, "loss": self.loss}
        row = [*map(_number, values.values()), f"{self.images:,}", f"{self.seconds:.1f}"]
        return _table([*values, "images", "seconds"], [row])


class Predictions(list[Classification], ExplainsGuesses):
    """The classes of several images, in order.

    Args:
        results: Classes of each image.
        labels: Name of each image for display.
        errors: Why images were skipped, by their names.
    """

    guessed_attributes: ClassVar[Mapping[str, str]] = {
        "to_df to_pandas df dataframe": "use to_dataframe()",
        "to_json to_dict json dict tojson": "use [result.as_tree() for result in predictions]",
        "to_excel to_parquet": "use to_dataframe(), whose table has this method",
        "names scores class_ids probs": "each item has names, scores and class_ids",
        "paths files": "use labels",
    }

    def __init__(
        self,
        results: Sequence[Classification],
        labels: Sequence[str],
        errors: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(results)
        self.labels = list(labels)
        self.errors = dict(errors or {})

    def __repr__(self) -> str:
        lines = [f"{label}: {result}" for label, result in zip(self.labels, self, strict=True)]
        lines += [f"{label}: skipped: {reason}" for label, reason in self.errors.items()]
        return "\n".join(lines) or "no images"

    def _repr_html_(self) -> str:
        rows = [[label, str(result)] for label, result in zip(self.labels, self, strict=True)]
        rows += [[label, f"skipped: {reason}"] for label, reason in self.errors.items()]
        return _table(["image", "classes"], rows)

    def to_dataframe(self) -> Any:
        """Returns a table of pandas with one row per image: path, class, score, class_2, score_2 and so on.

        Raises:
            UserError: The package pandas is missing.
        """
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError:
            raise UserError("to_dataframe needs the package pandas: pip install pandas") from None
        columns, rows = self._as_table()
        return pd.DataFrame(rows, columns=columns)

    @show_in_python
    def to_csv(self, path: str | Path) -> None:
        """Writes the table of `to_dataframe` to a new file, as CSV in UTF-8 with a byte order mark.

        Raises:
            UserError: The name does not end in ``.csv``, or the file exists already, or can't be written.
        """
        file_path = local_output("path", path)
        check_suffix("path", file_path, ".csv")
        columns, rows = self._as_table()
        texts = [
            {name: f"{value:.6f}" if isinstance(value, float) else value or "" for name, value in row.items()}
            for row in rows
        ]
        try:
            with file_path.open("x", encoding="utf-8", newline="") as file:
                file.write(format_table(columns, texts))
        except OSError as error:
            raise UserError(f"{path}: can't write this file: {error.strerror}; choose a new file") from None

    def _as_table(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Returns the columns and the rows of a table, with None for classes that an image does not have."""
        ranks = [
            rank_columns(rank + 1) for rank in range(max((len(each.scores) for each in self), default=1))
        ]
        columns = ["path", *(name for pair in ranks for name in pair)]
        rows = []
        for label, result in zip(self.labels, self, strict=True):
            row: dict[str, Any] = dict.fromkeys(columns)
            row["path"] = label
            names = result.names or tuple(map(str, result.class_ids))
            if result.unknown:
                names = ("unknown", *names[1:])
            for pair, name, score in zip(ranks, names, result.scores, strict=False):
                row |= dict(zip(pair, (name, score), strict=True))
            rows.append(row)
        return columns, rows


def _raise_first(names: Sequence[str], results: Sequence[Any]) -> None:
    """Raises the first error in the results of images, with the name of the image."""
    for name, result in zip(names, results, strict=True):
        if isinstance(result, UserError):
            raise result
        if isinstance(result, ValueError):
            raise ImageError(f"{name}: {_reason(name, result)}")


def _reason(name: str, error: Exception) -> str:
    """Returns the message of an error without the name of the image."""
    return str(error).removeprefix(f"{name}: ")


def _try_to_read(picture: Any, *, urls: bool) -> Any:
    """Returns an image for `Predictor`, or the error if it can't be read."""
    try:
        return read_picture(picture, urls=urls)
    except (UserError, ValueError) as error:
        return error


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns an HTML table."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
