"""Loading: YAML files, plain data, overrides and hostile input."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_source import register_example_source
from hypothesis import given, settings
from hypothesis import strategies as st
from paddleclas_trees import piecewise
from paths import ROOT
from quickstart import PATH

from ppcls.config.base.errors import ConfigError
from ppcls.config.base.overrides import Override
from ppcls.config.base.tree import copy_tree, node_at
from ppcls.config.base.yaml import read_yaml
from ppcls.data.transforms.specs import NormalizeImage, RandCropImage
from ppcls.errors import UserError
from ppcls.recipe.load import ConfigSource, dump_config, load_config, validate
from ppcls.recipe.schema import Config
from ppcls.recipe.settings import Global

register_example_source()
SHIPPED = sorted([*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")])
SHIPPED.remove(ROOT / "examples" / "tune.yaml")  # a search space, not a config
SHIPPED.remove(ROOT / "examples" / "custom_parts.yaml")  # adds to the registries; see tests/test_examples.py


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_load_shipped_config_survives_a_dump(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cats", "dogs"):  # class folders of finetune.yaml
        (tmp_path / "dataset" / "pictures" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config = load_config(path)
    assert load_config(write(tmp_path, dump_config(config))) == config


@pytest.mark.parametrize(
    ("config", "images", "labels"),
    [
        ("fashion_mnist_wrn", "image_file=other/train-images", "label_file=other/train-labels"),
        ("quickstart", "image_root=other", "cls_label_path=other/train_list.txt"),
    ],
)
def test_class_names_of_other_data_are_those_beside_it(config: str, images: str, labels: str) -> None:
    """With the names of the config's own data, predictions for other data would have wrong names."""
    path = ROOT / "configs" / f"{config}.yaml"
    names = "Infer.PostProcess.class_id_map_file"
    images, labels = (f"DataLoader.Train.dataset.{override}" for override in (images, labels))

    def names_with(*overrides: str) -> Any:
        source = ConfigSource.read(path)
        source.apply(map(Override.parse, overrides))
        return node_at(source.tree, names)

    own = node_at(read_yaml(path), names)
    assert names_with(images, labels) == "other/label_list.txt"
    assert names_with(images) == names_with(labels) == own  # such as a list of some of the images
    for chosen in (own, "mine.txt"):
        assert names_with(images, labels, f"{names}={chosen}") == chosen
    assert names_with(f"{names}=null", images, labels) is None


def test_settings_of_parameters_survive_a_dump() -> None:
    neck = {
        "name": "BNNeck",
        "num_features": 512,
        "weight_attr": {"initializer": {"name": "Constant", "value": 0.5}},
    }
    head = {
        "name": "FC",
        "embedding_size": 512,
        "class_num": 10,
        "weight_attr": {"initializer": {"name": "Normal", "std": 0.001}},
    }
    tree = read_yaml(ROOT / "examples" / "embeddings.yaml")
    tree["Arch"] |= {"Neck": neck, "Head": head}
    tree["Loss"]["Train"] = [{"CELoss": None}]
    tree["Optimizer"] |= {"by_name": [{"pattern": "*.bias", "lr_mult": 2}], "regularizer": None}
    config = validate(tree, "test")
    assert validate(yaml.safe_load(dump_config(config)), "again") == config


def test_load_and_registries_import_neither_paddle_nor_decoders(tmp_path: Path) -> None:
    """Paddle reads the number of threads and its share of GPU memory when it is imported."""
    for name in ("cats", "dogs"):  # class folders of finetune.yaml
        (tmp_path / "dataset" / "pictures" / name).mkdir(parents=True)
    code = (
        "import sys\n"
        "from ppcls import registry\n"
        "from ppcls.recipe.compat import config_warnings\n"
        "from ppcls.recipe.load import load_config\n"
        "for path in sys.argv[1:]:\n"
        "    config_warnings(load_config(path))\n"
        "registries = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]\n"
        "for each in registries:\n"
        "    if each is not registry.ARCHITECTURES:\n"
        "        [each[name] for name in each]\n"
        "print(len(registries), *sorted({'paddle', 'nvidia', 'cv2'} & set(sys.modules)))\n"
    )
    paths = [path for path in SHIPPED if path.stem != "python_source"]  # its module imports OpenCV
    command = [sys.executable, "-c", code, *map(str, paths)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 10


def test_load_finds_shipped_configs() -> None:
    assert PATH in SHIPPED


def test_load_paddleclas_config_unchanged() -> None:
    config = load_config(piecewise("ResNet50"))
    _, crop, flip, normalize = config.DataLoader.Train.dataset.transform_ops[:4]
    assert isinstance(crop, RandCropImage)
    assert (crop.size, crop.scale, crop.ratio) == ((224, 224), (0.08, 1.0), (0.75, 4 / 3))
    assert flip.kind == "RandFlipImage"
    assert isinstance(normalize, NormalizeImage)
    assert normalize.scale == 1 / 255


@pytest.mark.parametrize(
    ("override", "get", "value"),
    [
        ("Global.epochs=3", lambda c: c.Global.epochs, 3),
        (" Global.epochs =  3 ", lambda c: c.Global.epochs, 3),
        ("Global.epochs=0x10", lambda c: c.Global.epochs, 16),
        ("Global.use_dali=off", lambda c: c.Global.use_dali, False),
        ("Global.checkpoints=null", lambda c: c.Global.checkpoints, None),
        ("Global.checkpoints=", lambda c: c.Global.checkpoints, None),
        ("Global.output_dir=a=b", lambda c: c.Global.output_dir, "a=b"),
        ("Global.output_dir='5'", lambda c: c.Global.output_dir, "5"),
        ("Global.output_dir=2024-02-30", lambda c: c.Global.output_dir, "2024-02-30"),
        ("Global.output_dir=2024-02-03", lambda c: c.Global.output_dir, "2024-02-03"),
        ("Optimizer.lr.learning_rate=1e-3", lambda c: c.Optimizer.lr.peak, 0.001),
        ("Optimizer.lr.learning_rate=1E+0", lambda c: c.Optimizer.lr.peak, 1.0),
        ("Optimizer.lr.learning_rate=1.e0", lambda c: c.Optimizer.lr.peak, 1.0),
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
def test_override_value_is_read_as_yaml(override: str, get: Any, value: Any) -> None:
    found = get(load_config(PATH, [override]))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("overrides", "section", "unused"),
    [
        (["DataLoader.Train.sampler.name=ClassBalancedSampler"], "DataLoader.Train.sampler", "shuffle"),
        (["Optimizer.name=AdamW"], "Optimizer", "momentum, regularizer"),
        (["Optimizer.name=Adam", "Optimizer.beta1=0.8"], "Optimizer", "momentum"),
        (["Optimizer.lr.name=ConstLR"], "Optimizer.lr", "eta_min"),
        (["Arch.name=ResNet18"], "Arch", "depth"),
    ],
)
def test_keys_of_a_replaced_component_are_not_used_and_announced(
    overrides: list[str], section: str, unused: str
) -> None:
    tree = copy_tree(read_yaml(PATH))
    tree["Optimizer"]["lr"]["eta_min"] = 0.001
    if section == "Arch":
        tree["Arch"] = {"name": "WideResNet", "class_num": 10, "depth": 16}
    config = load_config(tree, overrides)
    reason = f"not used, because -o {overrides[0]} replaces the component"
    assert config.notes == (f"the config: {section}: {unused} of the file {reason}",)
    typed = node_at(tree, section) | {"name": overrides[0].partition("=")[2]}
    with pytest.raises(ConfigError, match=unused.split(",")[0]):
        load_config(tree, {section: typed})


def test_typed_keys_of_a_replaced_component_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"Optimizer\.momentum: unknown key") as caught:
        load_config(PATH, ["Optimizer.name=AdamW", "Optimizer.momentum=0.8", "Optimizer.regularizer.coeff=1"])
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match="shuffle: unknown key"):
        load_config(PATH, {"DataLoader.Train.sampler": {"name": "ClassBalancedSampler", "shuffle": True}})


def test_overrides_apply_in_order() -> None:
    config = load_config(PATH, ["Global.epochs=3", "Global.seed=5", "Global.epochs=4"])
    assert (config.Global.epochs, config.Global.seed) == (4, 5)


def test_override_never_runs_code(tmp_path: Path) -> None:
    code = f"__import__('pathlib').Path({str(tmp_path / 'made')!r}).touch()"
    assert load_config(PATH, [f"Global.output_dir={code}"]).Global.output_dir == code
    for tag in ("!!python/object/apply:os.system ['true']", "!!python/name:os.system"):
        with pytest.raises(ConfigError, match="could not determine a constructor for the tag"):
            load_config(PATH, [f"Global.output_dir={tag}"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("Global.epochs", "expected path=value, such as Global.epochs=10; put images before -o"),
        ("=5", "expected path=value, such as Global.epochs=10; put images before -o"),
        ("Global..epochs=5", "expected path=value, such as Global.epochs=10; put images before -o"),
        ("Global.epochs.x=1", "Global.epochs is 8, so it has no 'x'"),
        ("Metric.Eval[1]=1", "Metric.Eval is a list: expected a number from 0 to 0, got '1'"),
        ("Metric.Eval.-1=1", "Metric.Eval is a list: expected a number from 0 to 0, got '-1'"),
        ("Metric.Eval.²=1", "Metric.Eval is a list: expected a number from 0 to 0, got '²'"),
        ("Global={{}", "line 1, column 4: expected ',' or '}', but got '<stream end>'"),
        ("Global={a: 1, a: 2}", "line 1, column 8: duplicate key 'a', first set in line 1"),
    ],
)
def test_override_invalid_is_named_in_the_error(override: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(PATH, [override])
    assert str(caught.value) == f"-o {override}\n  {text}"


def test_override_below_an_empty_list_raises() -> None:
    with pytest.raises(ConfigError, match=r"Metric\.Eval is an empty list, so it has no '0'"):
        load_config(PATH, ["Metric.Eval=[]", "Metric.Eval.0=TopkAcc"])


def test_override_of_shared_alias_changes_only_its_path(tmp_path: Path) -> None:
    tree = read_yaml(write(tmp_path, "a: &one {x: 1}\nb: *one\n"))
    Override.parse("a.x=2").apply(tree)
    assert tree == {"a": {"x": 2}, "b": {"x": 1}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty; expected sections such as Global and Arch"),
        ("[1, 2]", "expected sections such as Global and Arch, got [1, 2]"),
        ("Arch:\n  name: x\nArch:\n", "line 3, column 1: duplicate key 'Arch', first set in line 1"),
        ("Arch: {\n", "line 2, column 1: expected the node content, but found '<stream end>'"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: but found another document"),
        ("? [a]\n: b", "line 1, column 3: expected a plain key"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'"),
        ("a: &a [*a]", "line 1, column 8: an alias inside its own anchor"),
        ("a: 0x_", "line 1, column 4: can't read this value: invalid literal for int() with base 16: ''"),
        ("a: !!bool maybe", "line 1, column 4: can't read this value: 'maybe'"),
        ("!!map [1]", "line 1, column 1: expected a mapping node, but found sequence"),
        ("[" * 500, "line 1, column 51: nested more than 50 levels deep"),
        (f"a: {'x' * 10_001}", "line 1, column 4: expected a value of at most 10,000 characters"),
        (f"{'x' * 10_001}: 1", "line 1, column 1: expected a value of at most 10,000 characters"),
        (f"a: {'1' * 9_000}", "line 1, column 4: can't read this value: Exceeds the limit"),
    ],
)
def test_read_tree_invalid_yaml_names_the_position(text: str, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}\n  {problem}")


def test_read_tree_binary_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=re.escape(f"{path}: can't read this config: 'utf-8' codec")):
        load_config(path)
    path.write_bytes(b"a: \x00")
    with pytest.raises(ConfigError, match=re.escape(f"{path}\n  not YAML: unacceptable character")):
        load_config(path)
    path.write_bytes(b"a: 1 #" + b"x" * (1 << 20))
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        load_config(path)


def test_read_tree_missing_file_names_existing_ones(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(UserError, match=r"none.yaml: no such config file"):
        load_config(path)
    for name in ("b.yaml", "a.yaml", "c.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: no such config file; known: a.yaml, b.yaml"


def test_read_tree_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can't read this config: it is a folder"):
        load_config(tmp_path)


def test_read_tree_fifo_or_device_raises_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "run.yaml"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero")):
        with pytest.raises(UserError, match=f"{path}: can't read this config: not a regular file"):
            load_config(path)


def test_read_tree_expands_merge_keys_and_anchors(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: {c: {<<: *a, y: 3}}\nd: *a\n"
    expected = {"a": {"x": 1, "y": 2}, "b": {"c": {"x": 1, "y": 3}}, "d": {"x": 1, "y": 2}}
    assert read_yaml(write(tmp_path, text)) == expected


def test_read_tree_limits_multiplied_aliases(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="more than 100000 values after expanding aliases"):
        read_yaml(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(("levels", "rejected"), [(48, False), (49, True)])
def test_read_tree_limits_depth_with_aliases_expanded(levels: int, rejected: bool, tmp_path: Path) -> None:
    """No line nests more than two levels; the values of the last anchor do."""
    lines = ["a0: &a0 [1]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, levels))]
    expected = pytest.raises(ConfigError, match="nested more than 50 levels deep after expanding aliases")
    with expected if rejected else contextlib.nullcontext():
        read_yaml(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize("digits", ["1" * 200_000 + "e", "1" * 9_999 + "e", "1." * 4_999, "1_" * 4_999])
def test_load_long_numbers_take_little_time(digits: str, tmp_path: Path) -> None:
    start = time.process_time()
    with pytest.raises(ConfigError):
        load_config(PATH, [f"Global.seed={digits}"])
    tree = read_yaml(PATH)
    with contextlib.suppress(ConfigError):
        dump_config(load_config(tree, {"Global.save_inference_dir": digits}))
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Global.output_dir", '"a\\0b"'),
        ("Global.pretrained_model", '"\\ud800"'),
        ("Infer.infer_imgs", '"x\\0"'),
        ("DataLoader.Train.dataset.image_root", '"\\0"'),
    ],
)
def test_load_nul_or_surrogate_in_text_is_reported(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(PATH, [f"{key}={value}"])
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key}: contains a NUL or surrogate character")


def test_load_nul_in_image_root_is_reported_before_its_classes_are_counted() -> None:
    data = {"DataLoader.Train.dataset": {"name": "ImageFolderDataset", "image_root": "a\0b"}}
    with pytest.raises(ConfigError, match=r"DataLoader\.Train\.dataset\.image_root: contains a NUL"):
        load_config(PATH, {"Arch.class_num": "auto", **data})


@pytest.mark.parametrize(
    "text", ["1e-3", "2024-01-01", "yes", "null", "5", "ünï cödé", " a ", "a: b", "#", "1.0/2", ""]
)
def test_dump_text_stays_text(text: str, tmp_path: Path) -> None:
    config = load_config(PATH, {"Global.save_inference_dir": text})
    again = load_config(write(tmp_path, dump_config(config)))
    assert again == config
    assert again.Global.save_inference_dir == text


def test_dump_keeps_the_order_of_the_schema() -> None:
    dumped = yaml.safe_load(dump_config(load_config(PATH)))
    assert list(dumped) == list(Config.model_fields)


def test_load_plain_data_equals_yaml() -> None:
    tree = read_yaml(PATH)
    before = copy.deepcopy(tree)
    crop = "DataLoader.Train.dataset.transform_ops[1].RandCropImage.size"
    expected = load_config(PATH, ["Global.epochs=3", f"{crop}=16"])
    assert load_config(tree, {"Global.epochs": 3, crop: 16}) == expected
    assert tree == before
    assert load_config(tree, {"Global.output_dir": Path("out") / "x"}).Global.output_dir == "out/x"
    assert load_config(tree, "Global.epochs=2").Global.epochs == 2, "one override, not a list of characters"
    nested = {"Loss.Train": ({"CELoss": {"weight": 0.5}},)}
    assert load_config(tree, nested).Loss.Train[0].weight == 0.5


def test_load_expands_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file = write(tmp_path, PATH.read_text().replace("./output/quickstart\n", "~/my runs\n", 1))
    assert load_config(file).Global.output_dir == "/home/me/my runs"
    for overrides in (["Global.output_dir=~/runs"], {"Global.output_dir": Path("~/runs")}):
        assert load_config(PATH, overrides).Global.output_dir == "/home/me/runs"
    assert load_config(PATH, ["Global.output_dir=a~/b"]).Global.output_dir == "a~/b"


def endless() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    tree["Global"] = tree
    return tree


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        ({}, {}, "the config\n  Arch: missing; it has no default"),
        ({3: 4}, {}, "the config\n  expected text as a key, got 3"),
        (endless(), {}, "the config\n  nested more than 50 levels deep"),
        (PATH, {"Global.epoch": 3}, "Global.epoch: unknown key; did you mean 'epochs'?"),
        (PATH, {"Global.epochs": "3"}, "Global.epochs: expected an integer > 0, got '3'"),
        (PATH, {"Global..epochs": 3}, "override Global..epochs\n  expected path=value"),
        (PATH, {"Global.seed.x": 3}, "override Global.seed.x\n  Global.seed is 1, so it has no 'x'"),
        (PATH, {"Global": {1: 2}}, "Global\n  expected text as a key, got 1"),
        (PATH, {"Global.output_dir": object}, "Global.output_dir: expected text, got <class 'object'>"),
    ],
)
def test_load_invalid_plain_data_names_the_key(source: Any, overrides: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    assert message in str(caught.value)


def leaves(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the paths of all nodes of a tree."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(leaf for key, child in children for leaf in leaves(child, (*path, key)))]


TREE = piecewise("ResNet50")
PATHS = leaves(TREE)[1:]
NAMES = sorted({str(key) for path in PATHS for key in path})
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
    max_leaves=8,
)


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    key, *rest = path
    if isinstance(tree, dict):
        return {**tree, key: replaced(tree[key], tuple(rest), value)}
    return [replaced(each, tuple(rest), value) if i == key else each for i, each in enumerate(tree)]


def check_loads_or_explains(tree: Any) -> None:
    try:
        config = validate(tree, "tree")
    except ConfigError as error:
        for problem in error.problems:
            assert problem
            assert "Input should" not in problem, "pydantic's words"
            assert "Value error" not in problem, "pydantic's words"
    else:
        assert validate(yaml.safe_load(dump_config(config)), "again") == config


@settings(max_examples=50)
@given(GARBAGE)
def test_validate_garbage_is_explained(tree: Any) -> None:
    check_loads_or_explains(tree)


@settings(max_examples=150)
@given(st.sampled_from(PATHS), GARBAGE)
def test_validate_garbage_names_its_path(path: tuple[Any, ...], value: Any) -> None:
    check_loads_or_explains(replaced(TREE, path, value))


@settings(max_examples=80)
@given(
    st.text(max_size=30)
    | st.sampled_from(["!!int", "!!float", "!!timestamp", "!!set", "!!omap"]).flatmap(
        lambda tag: st.text("0123456789abx_:-.[]{}, ", max_size=8).map(lambda text: f"{tag} {text}")
    )
)
def test_override_any_text_is_applied_or_explained(text: str) -> None:
    for override in (text, f"Global.output_dir={text}", f"DataLoader.Train.dataset.transform_ops.{text}"):
        tree = copy.deepcopy(TREE)
        with contextlib.suppress(UserError):
            Override.parse(override).apply(tree)
            validate(tree, "tree")


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({"output_dir": "runs/pets/"}, "runs/pets/inference"),
        ({"output_dir": "runs/pets", "save_inference_dir": "mine"}, "mine"),
        ({}, "./inference"),
    ],
)
def test_exported_models_go_to_the_output_folder_by_default(settings: dict[str, str], folder: str) -> None:
    assert Global(**settings).save_inference_dir == folder


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ResNet50_fp16_dygraph.yaml", "; ppcls has -c ResNet50_fp16"),
        (
            "ppcls/configs/ImageNet/ResNet/ResNet50_vb.yaml",
            "; ppcls has -c ResNet50; of PaddleClas's files in configs/ImageNet, ppcls has those in ",
        ),
        ("fintune.yaml", "; did you mean 'finetune'?"),
    ],
)
def test_missing_config_suggests_one_of_the_package(name: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(name)
    assert str(caught.value).startswith(f"{name}: no such config file{hint}")
