"""From a file and ``-o`` to a `Config`, and back."""

from __future__ import annotations

import contextlib
import copy
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT
from pydantic import ValidationError

from ppcls.config.base.errors import ConfigError
from ppcls.config.load import apply_override, dump_config, load_config, read_tree, validate
from ppcls.config.sections.run import AMP
from ppcls.data.transforms.specs import NormalizeImage, RandCropImage
from ppcls.errors import UserError

QUICKSTART = ROOT / "configs/quickstart.yaml"
runpy.run_path(str(ROOT / "examples/python_source.py"))  # its config names what it registers
SHIPPED = sorted([*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")])

PADDLECLAS_RESNET50 = """
# global configs
Global:
  checkpoints: null
  pretrained_model: null
  output_dir: ./output/
  device: gpu
  save_interval: 1
  eval_during_train: True
  eval_interval: 1
  epochs: 120
  print_batch_step: 10
  use_visualdl: False
  # used for static mode and model export
  image_shape: [3, 224, 224]
  save_inference_dir: ./inference
  # training model under @to_static
  to_static: False

# model architecture
Arch:
  name: ResNet50
  class_num: 1000

# loss function config for training/eval process
Loss:
  Train:
    - CELoss:
        weight: 1.0
  Eval:
    - CELoss:
        weight: 1.0

Optimizer:
  name: Momentum
  momentum: 0.9
  lr:
    name: Piecewise
    learning_rate: 0.1
    decay_epochs: [30, 60, 90]
    values: [0.1, 0.01, 0.001, 0.0001]
  regularizer:
    name: 'L2'
    coeff: 0.0001

# data loader for train and eval
DataLoader:
  Train:
    dataset:
      name: ImageNetDataset
      image_root: ./dataset/ILSVRC2012/
      cls_label_path: ./dataset/ILSVRC2012/train_list.txt
      transform_ops:
        - DecodeImage:
            to_rgb: True
            channel_first: False
        - RandCropImage:
            size: 224
        - RandFlipImage:
            flip_code: 1
        - NormalizeImage:
            scale: 1.0/255.0
            mean: [0.485, 0.456, 0.406]
            std: [0.229, 0.224, 0.225]
            order: ''

    sampler:
      name: DistributedBatchSampler
      batch_size: 64
      drop_last: False
      shuffle: True
    loader:
      num_workers: 4
      use_shared_memory: True

  Eval:
    dataset:
      name: ImageNetDataset
      image_root: ./dataset/ILSVRC2012/
      cls_label_path: ./dataset/ILSVRC2012/val_list.txt
      transform_ops:
        - DecodeImage:
            to_rgb: True
            channel_first: False
        - ResizeImage:
            resize_short: 256
        - CropImage:
            size: 224
        - NormalizeImage:
            scale: 1.0/255.0
            mean: [0.485, 0.456, 0.406]
            std: [0.229, 0.224, 0.225]
            order: ''
    sampler:
      name: DistributedBatchSampler
      batch_size: 64
      drop_last: False
      shuffle: False
    loader:
      num_workers: 4
      use_shared_memory: True

Infer:
  infer_imgs: docs/images/inference_deployment/whl_demo.jpg
  batch_size: 10
  transforms:
    - DecodeImage:
        to_rgb: True
        channel_first: False
    - ResizeImage:
        resize_short: 256
    - CropImage:
        size: 224
    - NormalizeImage:
        scale: 1.0/255.0
        mean: [0.485, 0.456, 0.406]
        std: [0.229, 0.224, 0.225]
        order: ''
    - ToCHWImage:
  PostProcess:
    name: Topk
    topk: 5
    class_id_map_file: ppcls/utils/imagenet1k_label_list.txt

Metric:
  Train:
    - TopkAcc:
        topk: [1, 5]
  Eval:
    - TopkAcc:
        topk: [1, 5]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shipped_config_loads_and_says_itself_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cats", "dogs"):  # where finetune.yaml finds its classes
        (tmp_path / "dataset" / "pictures" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config = load_config(path)
    assert load_config(written(tmp_path, dump_config(config))) == config


def test_there_are_shipped_configs() -> None:
    assert QUICKSTART in SHIPPED


PADDLECLAS_O2 = {
    "Global.image_channel": 4,
    "Global.image_shape": [4, 224, 224],
    "Global.use_dali": True,
    "AMP.scale_loss": 128.0,
    "AMP.use_dynamic_loss_scaling": True,
    "AMP.use_promote": False,
    "AMP.use_fp16_test": True,
    "AMP.level": "O2",
    "Arch.input_image_channel": 4,
    "Arch.data_format": "NHWC",
    "Optimizer.multi_precision": True,
    **{
        f"DataLoader.{split}.dataset.transform_ops.3.NormalizeImage.channel_num": 4
        for split in ("Train", "Eval")
    },
    "DataLoader.Train.dataset.transform_ops.3.NormalizeImage.output_fp16": True,
    "Infer.transforms.3.NormalizeImage.channel_num": 4,
}


def test_paddleclas_o2_is_read_as_it_writes_it(tmp_path: Path) -> None:
    overrides = [f"{key}={value}" for key, value in PADDLECLAS_O2.items()]
    config = load_config(written(tmp_path, PADDLECLAS_RESNET50), overrides)
    assert config.AMP is not None
    assert config.AMP.model_dump() == {
        **AMP().model_dump(),
        **{"level": "O2", "scale_loss": 128.0, "use_promote": False, "use_fp16_test": True},
    }
    assert load_config(written(tmp_path, dump_config(config))) == config


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "Optimizer.multi_precision=False",
            "Optimizer.multi_precision: expected True: AMP.level O2 keeps float32",
        ),
        (
            "AMP.min_loss_scaling=256",
            r"AMP.scale_loss: expected at least AMP.min_loss_scaling \(256\), got 128",
        ),
    ],
)
def test_mixed_precision_that_contradicts_itself(tmp_path: Path, override: str, text: str) -> None:
    overrides = [f"{key}={value}" for key, value in PADDLECLAS_O2.items()]
    with pytest.raises(UserError, match=text):
        load_config(written(tmp_path, PADDLECLAS_RESNET50), [*overrides, override])


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "Global.early_stopping=3",
            "Global.early_stopping: it goes by evaluations; set Global.eval_during_train",
        ),
        (
            "Optimizer.lr={name: ReduceOnPlateau, learning_rate: 0.1}",
            "Optimizer.lr.name: ReduceOnPlateau goes by evaluations; set Global.eval_during_train",
        ),
    ],
)
def test_what_goes_by_evaluations_needs_them(override: str, text: str) -> None:
    load_config(QUICKSTART, [override])
    with pytest.raises(UserError, match=re.escape(text)):
        load_config(QUICKSTART, [override, "Global.eval_during_train=False"])


def test_a_config_of_paddleclas_loads_unchanged(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, PADDLECLAS_RESNET50))
    assert config.DataLoader.Train is not None
    _, crop, flip, normalize = config.DataLoader.Train.dataset.transform_ops
    assert isinstance(crop, RandCropImage)
    assert (crop.size, crop.scale, crop.ratio) == ((224, 224), (0.08, 1.0), (0.75, 4 / 3))
    assert flip.kind == "RandFlipImage"
    assert isinstance(normalize, NormalizeImage)
    assert normalize.scale == 1 / 255
    assert config.Optimizer.model_dump()["regularizer"] == {"name": "L2", "coeff": 1e-4}
    assert load_config(written(tmp_path, dump_config(config))) == config


def test_a_config_is_frozen() -> None:
    config = load_config(QUICKSTART)
    with pytest.raises(ValidationError):
        config.Global.epochs = 3
    with pytest.raises(ValidationError):
        config.Arch = config.Arch
    assert config.DataLoader.Train is not None
    assert isinstance(config.DataLoader.Train.dataset.transform_ops, tuple)


@pytest.mark.parametrize(
    ("override", "get", "value"),
    [
        ("Global.epochs=3", lambda c: c.Global.epochs, 3),
        (" Global.epochs =  3 ", lambda c: c.Global.epochs, 3),
        ("Global.epochs=0x10", lambda c: c.Global.epochs, 16),
        ("Global.use_dali=False", lambda c: c.Global.use_dali, False),
        ("Global.use_dali=off", lambda c: c.Global.use_dali, False),
        ("Global.checkpoints=null", lambda c: c.Global.checkpoints, None),
        ("Global.checkpoints=", lambda c: c.Global.checkpoints, None),
        ("Global.output_dir=a=b", lambda c: c.Global.output_dir, "a=b"),
        ("Global.output_dir='5'", lambda c: c.Global.output_dir, "5"),
        ("Global.output_dir=2024-02-30", lambda c: c.Global.output_dir, "2024-02-30"),
        ("Global.output_dir=2024-02-03", lambda c: c.Global.output_dir, "2024-02-03"),
        ("Optimizer.lr.learning_rate=1e-3", lambda c: c.Optimizer.lr.peak, 0.001),
        ("Optimizer.lr.learning_rate=1E+0", lambda c: c.Optimizer.lr.peak, 1.0),
        ("Optimizer.lr.learning_rate=.5e-1", lambda c: c.Optimizer.lr.peak, 0.05),
        ("Optimizer.lr.learning_rate=1.0/255.0", lambda c: c.Optimizer.lr.peak, 1 / 255),
        ("Optimizer.lr.learning_rate=1 / 4", lambda c: c.Optimizer.lr.peak, 0.25),
        ("Optimizer.lr.learning_rate=2", lambda c: c.Optimizer.lr.peak, 2.0),
        ("Metric.Eval.0.TopkAcc.topk=2", lambda c: c.Metric.Eval[0].topk, (2,)),
        ("Metric.Eval[0].TopkAcc.topk=[1, 2]", lambda c: c.Metric.Eval[0].topk, (1, 2)),
        ("Metric.Train=[TopkAcc: {topk: 3}]", lambda c: c.Metric.Train[0].topk, (3,)),
        ("AMP.dtype=bfloat16", lambda c: c.AMP.dtype, "bfloat16"),
        ("EMA={}", lambda c: c.EMA.decay, 0.9999),
        (
            "DataLoader.Train.dataset.transform_ops[1].RandCropImage.size=[32, 48]",
            lambda c: c.DataLoader.Train.dataset.transform_ops[1].size,
            (32, 48),
        ),
    ],
)
def test_an_override_is_read_as_yaml(override: str, get: Any, value: Any) -> None:
    got = get(load_config(QUICKSTART, [override]))
    assert got == value
    assert type(got) is type(value)


def test_overrides_apply_in_order() -> None:
    config = load_config(QUICKSTART, ["Global.epochs=3", "Global.seed=5", "Global.epochs=4"])
    assert (config.Global.epochs, config.Global.seed) == (4, 5)


def test_code_in_an_override_is_only_text(tmp_path: Path) -> None:
    code = f"__import__('pathlib').Path({str(tmp_path / 'made')!r}).touch()"
    assert load_config(QUICKSTART, [f"Global.output_dir={code}"]).Global.output_dir == code
    for tag in ("!!python/object/apply:os.system ['true']", "!!python/name:os.system"):
        with pytest.raises(ConfigError, match="could not determine a constructor for the tag"):
            load_config(QUICKSTART, [f"Global.output_dir={tag}"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("Global.epochs", "expected path=value, such as Global.epochs=10"),
        ("=5", "expected path=value, such as Global.epochs=10"),
        ("Global..epochs=5", "expected path=value, such as Global.epochs=10"),
        (".epochs=5", "expected path=value, such as Global.epochs=10"),
        ("Global.epochs.x=1", "Global.epochs is 8, so it has no 'x'"),
        ("Metric.Eval.1.TopkAcc=1", "Metric.Eval is a list: expected a number from 0 to 0, got '1'"),
        ("Metric.Eval[1]=1", "Metric.Eval is a list: expected a number from 0 to 0, got '1'"),
        ("Metric.Eval.-1=1", "Metric.Eval is a list: expected a number from 0 to 0, got '-1'"),
        ("Metric.Eval.²=1", "Metric.Eval is a list: expected a number from 0 to 0, got '²'"),
        ("Metric.Eval.TopkAcc=1", "Metric.Eval is a list: expected a number from 0 to 0, got 'TopkAcc'"),
        ("Global={{}", "line 1, column 4: expected ',' or '}', but got '<stream end>'"),
        ("Global={a: 1, a: 2}", "line 1, column 8: duplicate key 'a', first given in line 1"),
    ],
)
def test_a_wrong_override_names_itself(override: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, [override])
    assert str(caught.value) == f"-o {override}\n  {text}"


def test_an_override_within_an_empty_list() -> None:
    with pytest.raises(ConfigError, match=r"Metric\.Eval is an empty list, so it has no '0'"):
        load_config(QUICKSTART, ["Metric.Eval=[]", "Metric.Eval.0=TopkAcc"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty; expected sections such as Global and Arch"),
        ("# nothing\n", "the file is empty; expected sections such as Global and Arch"),
        ("[1, 2]", "expected sections such as Global and Arch, got [1, 2]"),
        ("Global", "expected sections such as Global and Arch, got 'Global'"),
        ("Arch:\n  name: x\nArch:\n", "line 3, column 1: duplicate key 'Arch', first given in line 1"),
        ("Arch: {name: 1, name: 2}", "line 1, column 17: duplicate key 'name', first given in line 1"),
        ("Arch: {\n", "line 2, column 1: expected the node content, but found '<stream end>'"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: but found another document"),
        ("? [a]\n: b", "line 1, column 3: expected a plain key"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'"),
        ("a: 0x_", "line 1, column 4: can't read this value: invalid literal for int() with base 16: ''"),
        ("a: !!bool maybe", "line 1, column 4: can't read this value: 'maybe'"),
        ("!!map [1]", "line 1, column 1: expected a mapping node, but found sequence"),
        ("[" * 5000, "line 1, column 51: nested too deeply: more than 50 levels"),
    ],
)
def test_what_is_no_config(text: str, problem: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}\n  {problem}"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=re.escape(f"{path}: can't read this config: 'utf-8' codec")):
        load_config(path)
    path.write_bytes(b"a: \x00")
    with pytest.raises(ConfigError, match=re.escape(f"{path}\n  not YAML: unacceptable character")):
        load_config(path)


def test_a_missing_file_names_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "none.yaml")
    assert str(caught.value) == f"{tmp_path}/none.yaml: no such config file"
    for name in ("b.yaml", "a.yaml", "c.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "none.yaml")
    hint = f"there are: {tmp_path}/a.yaml, {tmp_path}/b.yaml"
    assert str(caught.value) == f"{tmp_path}/none.yaml: no such config file; {hint}"
    with pytest.raises(UserError, match=r"no such config file$"):
        load_config(tmp_path / "nowhere/none.yaml")


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can't read this config: .*Is a directory"):
        load_config(tmp_path)


def test_merge_keys_and_anchors(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: {c: {<<: *a, y: 3}}\nd: *a\n"
    expected = {"a": {"x": 1, "y": 2}, "b": {"c": {"x": 1, "y": 3}}, "d": {"x": 1, "y": 2}}
    assert read_tree(written(tmp_path, text)) == expected


@pytest.mark.parametrize(
    "text", ["1e-3", "2024-01-01", "yes", "null", "5", "ünï cödé", " a ", "a: b", "#", "1.0/2", ""]
)
def test_text_stays_text_in_a_round_trip(text: str, tmp_path: Path) -> None:
    tree = read_tree(QUICKSTART)
    tree["Global"]["save_inference_dir"] = text
    config = validate(tree, "tree")
    again = load_config(written(tmp_path, dump_config(config)))
    assert again == config
    assert again.Global.save_inference_dir == text


def leaves(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a tree, inner ones too."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(each for key, child in children for each in leaves(child, (*path, key)))]


TREE = yaml.safe_load(PADDLECLAS_RESNET50)
PLACES = leaves(TREE)[1:]
NAMES = sorted({str(key) for path in PLACES for key in path})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*NAMES, "1/0", "1e999/1", "-1/3", 10**400])
)
GARBAGE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(NAMES) | st.text(max_size=4) | st.integers() | st.booleans(), inner, max_size=4
        )
    ),
    max_leaves=12,
)


def planted(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    key, *rest = path
    if isinstance(tree, dict):
        return {**tree, key: planted(tree[key], tuple(rest), value)}
    return [planted(each, tuple(rest), value) if i == key else each for i, each in enumerate(tree)]


def loads_or_explains(tree: Any) -> None:
    problems: tuple[str, ...] = ()
    try:
        config = validate(tree, "tree")
    except ConfigError as error:
        problems = error.problems or ("",)
    else:
        assert validate(yaml.safe_load(dump_config(config)), "again") == config
    for each in problems:
        assert each
        assert "Input should" not in each, "pydantic's words"
        assert "Value error" not in each, "pydantic's words"


@settings(max_examples=150)
@given(GARBAGE)
def test_garbage_is_refused_in_words(tree: Any) -> None:
    loads_or_explains(tree)


@settings(max_examples=300)
@given(st.sampled_from(PLACES), GARBAGE)
def test_garbage_in_one_place_is_refused_in_words(path: tuple[Any, ...], value: Any) -> None:
    loads_or_explains(planted(TREE, path, value))


@settings(max_examples=150)
@given(
    st.text(max_size=30)
    | st.sampled_from(["!!int", "!!float", "!!timestamp", "!!set", "!!omap"]).flatmap(
        lambda tag: st.text("0123456789abx_:-.[]{}, ", max_size=8).map(lambda text: f"{tag} {text}")
    )
)
def test_any_override_is_applied_or_explained(text: str) -> None:
    for override in (text, f"Global.output_dir={text}", f"DataLoader.Train.dataset.transform_ops.{text}"):
        tree = copy.deepcopy(TREE)
        with contextlib.suppress(UserError):
            apply_override(tree, override)
            validate(tree, "tree")


def test_an_override_changes_one_place_of_what_an_alias_shares(tmp_path: Path) -> None:
    file = tmp_path / "alias.yaml"
    file.write_text("a: &one {x: 1}\nb: *one\n")
    tree = read_tree(file)
    apply_override(tree, "a.x=2")
    assert tree == {"a": {"x": 2}, "b": {"x": 1}}


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bomb.yaml"
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="more than 100000 values, aliases expanded"):
        read_tree(file)


def test_plain_data_makes_the_same_config() -> None:
    tree = read_tree(QUICKSTART)
    before = copy.deepcopy(tree)
    expected = load_config(
        QUICKSTART, ["Global.epochs=3", "DataLoader.Train.dataset.transform_ops.1.RandCropImage.size=16"]
    )
    found = load_config(
        tree,
        {"Global.epochs": 3, "DataLoader.Train.dataset.transform_ops[1].RandCropImage.size": 16},
    )
    assert found == expected
    assert tree == before
    assert load_config(tree, {"Global.output_dir": Path("out") / "x"}).Global.output_dir == "out/x"
    assert load_config(tree, "Global.epochs=2").Global.epochs == 2, "one override is no list of characters"
    nested = {"Loss.Train": ({"CELoss": {"weight": 0.5}},)}
    assert load_config(tree, nested).Loss.Train[0].weight == 0.5


def test_a_path_in_the_home_folder_is_written_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No shell does it behind ``-o KEY=``: a folder called ~ would appear."""
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "mine.yaml").write_text(
        QUICKSTART.read_text().replace("./output/quickstart\n", "~/my runs\n", 1)
    )
    assert load_config(tmp_path / "mine.yaml").Global.output_dir == "/home/me/my runs"
    for overrides in (["Global.output_dir=~/runs"], {"Global.output_dir": Path("~/runs")}):
        assert load_config(QUICKSTART, overrides).Global.output_dir == "/home/me/runs"
    assert load_config(QUICKSTART, ["Global.output_dir=a~/b"]).Global.output_dir == "a~/b"


def endless() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    tree["Global"] = tree
    return tree


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        ({}, {}, "the config\n  Arch: missing; it has no default"),
        ({3: 4}, {}, "the config\n  expected text as a key, got 3"),
        (endless(), {}, "the config\n  nested too deeply: more than 50 levels"),
        (QUICKSTART, {"Global.epoch": 3}, "Global.epoch: unknown key; did you mean 'epochs'?"),
        (QUICKSTART, {"Global.epochs": "3"}, "Global.epochs: expected an integer > 0, got '3'"),
        (QUICKSTART, {"Global..epochs": 3}, "override Global..epochs\n  expected path=value"),
        (QUICKSTART, {"Global.seed.x": 3}, "override Global.seed.x\n  Global.seed is 1, so it has no 'x'"),
        (QUICKSTART, {"Global": {1: 2}}, "Global\n  expected text as a key, got 1"),
        (QUICKSTART, {"Global.output_dir": object}, "Global.output_dir: expected text, got <class 'object'>"),
    ],
)
def test_wrong_plain_data_is_told_by_its_place(source: Any, overrides: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    assert message in str(caught.value)
