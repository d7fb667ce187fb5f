import subprocess
import sys

import numpy as np
import paddle
import pytest
from paddleclas_reference import CLASSES, COMPARED, MODELS, fill, run

from ppcls.arch.build import build_model
from ppcls.registry import UnknownNameError

# Of the published ImageNet models.
PARAMETERS = {
    "ResNet18": 11_693_736,
    "ResNet34": 21_801_896,
    "ResNet50": 25_557_032,
    "ResNet101": 44_549_160,
    "ResNet152": 60_192_808,
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("paddleclas") / "reference.npz"
    script = sys.modules["paddleclas_reference"].__file__
    subprocess.run([sys.executable, script, str(path)], check=True)
    with np.load(path) as file:
        return dict(file)


def of(reference, prefix):
    return {key[len(prefix) :]: value for key, value in reference.items() if key.startswith(prefix)}


@pytest.mark.parametrize("name", MODELS)
def test_names_shapes_and_initial_values_are_those_of_paddleclas(reference, name):
    paddle.seed(1)
    state = build_model(name, class_num=CLASSES).state_dict()
    shapes = of(reference, f"{name}/shape/")
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == {
        key: tuple(shape) for key, shape in shapes.items()
    }
    for key, (mean, std, peak) in of(reference, f"{name}/init/").items():
        value = state[key].numpy()
        if std == 0:
            assert (value == mean).all(), key
        else:  # six standard errors of the mean; of the spread, with room for the small tensors
            error = std / np.sqrt(value.size)
            assert abs(value.mean() - mean) < 6 * np.sqrt(2) * error, key
            assert abs(value.std() - std) < 6 * error, key
            assert abs(np.abs(value).max() / peak - 1) < 0.5, key


@pytest.mark.parametrize("name", COMPARED)
def test_logits_are_those_of_paddleclas(reference, name):
    evaluated, trained = run(build_model(name, class_num=CLASSES))
    for ours, theirs in ((evaluated, reference[f"{name}/eval"]), (trained, reference[f"{name}/train"])):
        assert theirs.std() > 0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("name", MODELS)
def test_parameter_count_is_the_published_one(name):
    parameters = build_model(
        name
    ).parameters()  # Paddle counts the running statistics of batch norm among them
    assert sum(each.size for each in parameters if not each.stop_gradient) == PARAMETERS[name]


@pytest.mark.parametrize("name", COMPARED)
def test_layouts_agree_with_the_same_weights(name):
    rng = np.random.default_rng(0)
    image = rng.standard_normal((2, 4, 64, 64), dtype=np.float32)
    results = {}
    for data_format, axes in (("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))):
        model = build_model(name, class_num=7, data_format=data_format, input_image_channel=4)
        fill(model)
        model.train()
        logits = model(paddle.to_tensor(image.transpose(axes)))
        logits.square().mean().backward()
        results[data_format] = {
            "logits": logits.numpy(),
            "stem": model.stem[0].conv.weight.grad.numpy(),
            "statistics": model.blocks[-1].conv0.bn._mean.numpy(),
        }
    assert results["NCHW"]["logits"].shape == (2, 7)
    for key, value in results["NCHW"].items():
        np.testing.assert_allclose(results["NHWC"][key], value, rtol=0, atol=1e-3 * np.abs(value).max())


def test_unknown_architecture_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'ResNet50'"):
        build_model("Resnet_50")
