"""Builds PaddleClas's models and writes reference values for ours. It runs in a separate process.

    python paddleclas_reference.py FILE.npz NAME ...     initial state and logits of these models
    python paddleclas_reference.py FILE.npz layers       outputs of layers of some models
    python paddleclas_reference.py FILE.json [NAME ...]  table of these or all models, see `write_table`

PaddleClas's package runs its command line when it is imported. So its parent packages are replaced by empty
ones, and only the files with the models and their dependencies are executed.
"""

import hashlib
import importlib
import importlib.util
import json
import logging
import sys
import types
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.utils import unique_name

CLASSES = 10
BATCH = 4
SIDES = (64, 64)
ODD_SIDES = (67, 45)
ONLY_SIDES = {  # of networks that accept images of one size only
    "VGG11": (224, 224),
    "ViT_small_patch16_224": SIDES,
    "DeiT_tiny_distilled_patch16_224": SIDES,
    "AlexNet": (224, 224),
    "GoogLeNet": (224, 224),
    "HRNet_W18_C": (96, 96),
    "DLA34": (96, 96),
    "DLA60x_c": (96, 96),
    "InceptionV3": (107, 99),
    "InceptionV4": (107, 99),
    "RedNet26": (64, 96),
    "ResNeSt50_fast_1s1x64d": (64, 96),
    "ResNeSt50": (64, 96),
    "alt_gvt_small": (224, 224),
    "LeViT_128S": (224, 224),
    "TNT_small": (224, 224),
    "PeleeNet": (64, 96),
    "MixNet_S": (224, 224),
    "UniFormer_small": (224, 224),
    "CSWinTransformer_tiny_224": (224, 224),
    "NextViT_small_224": (64, 96),
    "DSNet_tiny": (224, 224),
    "MobileNetV4_hybrid_medium": (64, 96),
    "MobileViTV2_x0_5": (64, 128),
    "MobileViTV3_x0_5": (64, 128),
}
OPTIONS = {name: {"img_size": SIDES[0]} for name, sides in ONLY_SIDES.items() if sides == SIDES}
OPTIONS["ResNet18_dbb"] = {"layer_type": "DiverseBranchBlock", "use_first_short_conv": False}
EAGER = (  # start of the names of models that cannot be built without weights
    "CSWin",
    "ConvNeXt",
    "CvT",
    "DSNet",
    "EfficientNetV2",
    "FasterNet",
    "LeViT",
    "MobileViT",
    "NextViT",
    "PVT",
    "StarNet",
    "SwinTransformer",
    "TNT",
    "TinyNet",
    "UniFormer",
    "VAN",
    "alt_gvt",
    "pcpvt",
)
# Start of the names of models that PaddleClas can build, but not call.
BROKEN = "SwinTransformerV2"
# Of weights, against overflow: an involution multiplies features by features, and DSNet has many shortcuts.
SCALES = {"RedNet26": 0.3, "DSNet_tiny": 0.5}
OPTIONS["TinyNet_C"] = {  # as in PaddleClas's configs
    "override_params": {
        "batch_norm_momentum": 0.9,
        "batch_norm_epsilon": 1e-5,
        "depth_trunc": "round",
        "drop_connect_rate": 0.0,
    }
}
LAYERS = {  # as in PaddleClas's distillation configs
    "ResNet18": ("blocks[0]", "blocks[7]", "blocks[2].short", "avg_pool"),
    "MobileNetV3_small_x0_35": ("blocks[2].expand_conv",),
    "PPLCNet_x0_25": ("blocks3", "blocks5"),
}


def images(sides, channels=3):
    shape = (BATCH if sides[0] < 200 else 1, channels, *sides)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def fill(model, scale=1.0):
    """Sets each parameter and buffer to values that depend on its name and shape only, and on ``scale``."""
    for name, tensor in model.state_dict().items():
        if "float" not in str(tensor.dtype):
            continue
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if len(tensor.shape) > 1:
            fan_in = np.prod(tensor.shape[1:]) if len(tensor.shape) == 4 else tensor.shape[0]
            value = (
                (rng.random(tensor.shape, dtype=np.float32) - 0.5)
                * np.float32(scale)
                * np.sqrt(np.float32(12 / fan_in))
            )
        else:
            value = rng.uniform(0.5, 1.0, tensor.shape)
        tensor.set_value(value.astype(np.float32, copy=False))


def still(model):
    """Disables dropout: two implementations draw different random numbers."""
    if hasattr(model, "mconfig"):  # EfficientNetV2
        model.mconfig.survival_prob = 0.0
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        for rate in ("drop_connect_rate", "drop_prob", "drop_rate", "rate"):
            if isinstance(getattr(layer, rate, None), float):
                setattr(layer, rate, 0.0)


def run(model, name):
    """Returns the logits [BATCH, CLASSES] in evaluation, of images with odd sides, and in training."""
    fill(model, SCALES.get(name, 1.0))
    still(model)
    sides = ONLY_SIDES.get(name, SIDES)
    found = {}
    with paddle.no_grad():
        model.eval()
        found["eval"] = joined(model(paddle.to_tensor(images(sides))))[:, :CLASSES]
        if name not in ONLY_SIDES:
            found["odd"] = joined(model(paddle.to_tensor(images(ODD_SIDES))))
        model.train()
        found["train"] = joined(model(paddle.to_tensor(images(sides))))
    return found


def joined(outputs):
    """Returns logits [BATCH, CLASSES], or those of several classifiers side by side."""
    outputs = outputs.values() if isinstance(outputs, dict) else outputs
    return outputs.numpy() if isinstance(outputs, paddle.Tensor) else paddle.concat([*outputs], 1).numpy()


def state_of(model):
    """Returns parameters and buffers, without masks, which Swin Transformer V2 stores as zeros."""
    return {name: value for name, value in model.state_dict().items() if not name.endswith(".attn_mask")}


def digest(model):
    """Returns a hash of all parameter names."""
    lines = sorted(f"{name} {tuple(value.shape)}" for name, value in state_of(model).items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def rates_of(model):
    """Returns the lowest and highest rate, and the number of rates, of dropout and of stochastic depth.

    Rates of 0 are ignored.
    """
    found = {"dropout": set(), "path": set()}
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, nn.Dropout):
            found["dropout"].add(layer.p)
        elif type(layer).__name__ == "DropPath":
            found["path"].add(layer.drop_prob if hasattr(layer, "drop_prob") else layer.rate)
        elif type(layer).__module__.startswith("paddleclas"):
            for kind, rates in rates_of_functions(layer).items():
                found[kind].update(rates)
    kept = {kind: sorted({round(float(rate), 5) for rate in rates if rate}) for kind, rates in found.items()}
    return {kind: [rates[0], rates[-1], len(rates)] for kind, rates in kept.items() if rates}


def rates_of_functions(layer):
    """Returns the rates of PaddleClas's layers that call a function instead of a layer."""
    match type(layer).__name__:
        case "PeleeNetDY":
            return {"dropout": {layer.drop_rate}}
        case "Residual" if hasattr(layer, "drop"):  # LeViT
            return {"path": {layer.drop}}
        case "MbConvBlock":  # EfficientNet and TinyNet
            args = layer.block_args
            if args.id_skip and args.stride == 1 and args.input_filters == args.output_filters:
                return {"path": {layer.drop_connect_rate}}
        case "EfficientNetV2":
            dropped, blocks = 1 - layer.mconfig.survival_prob, list(layer._blocks)
            skipping = (i for i, b in enumerate(blocks) if b.strides == 1 and b.in_channels == b.out_channels)
            return {"path": {dropped * i / len(blocks) for i in skipping}}
    return {}


def describe(model):
    """Returns what the table stores about a model, except its cost."""
    return {"names": digest(model), "rates": rates_of(model)}


def lay_out():
    """Installs empty parent packages, and stubs for unused imports of the models."""
    root = Path(importlib.util.find_spec("paddleclas").submodule_search_locations[0])
    parents = ("", ".ppcls", ".ppcls.utils", ".ppcls.arch", ".ppcls.arch.backbone")
    for parent in (*parents, ".ppcls.arch.backbone.legendary_models", ".ppcls.arch.backbone.model_zoo"):
        package = types.ModuleType(f"paddleclas{parent}")
        package.__path__ = [str(root.joinpath(*parent.split(".")))]
        sys.modules[package.__name__] = package
    sys.modules["paddleclas.ppcls.utils"].logger = logging.getLogger("paddleclas")
    # Paddle 2.6 truncates at two deviations, Paddle 3 at the value 2, which it sometimes returns.
    nn.initializer.TruncatedNormal = nn.initializer.Normal
    download = types.ModuleType("paddleclas.ppcls.utils.save_load")
    download.load_dygraph_pretrain = None
    sys.modules[download.__name__] = download


def builder(name):
    """Returns PaddleClas's function that builds ``name``, or None."""
    backbone = "paddleclas.ppcls.arch.backbone"
    name = name.removesuffix("_dbb")  # part of the weights' name, not of the function's
    for folder in ("legendary_models", "model_zoo"):
        for path in sorted(Path(sys.modules[f"{backbone}.{folder}"].__path__[0]).glob("*.py")):
            if f"def {name}(" in path.read_text(encoding="utf-8"):
                module = importlib.import_module(f"{backbone}.{folder}.{path.stem}")
                module.layer_scale = False  # which UniFormer_base_ls sets for all models
                return partial(getattr(module, name), pretrained=False)
    return None


def write_values(path, names):
    written = {}
    for name in names:
        paddle.seed(2)
        with unique_name.guard():  # several models use the same parameter names
            model = builder(name)(class_num=CLASSES, **OPTIONS.get(name, {}))
        for layer in model.sublayers():
            if hasattr(layer, "id_tensor"):  # float64, which Paddle 3 no longer adds to float32
                layer.id_tensor = layer.id_tensor.astype("float32")
        state = state_of(model)
        values = (state[key].numpy() for key in sorted(state))
        described = [(value.mean(), value.std(), np.abs(value).max()) for value in values]
        written[f"{name}/names"] = np.array(digest(model))
        written[f"{name}/init"] = np.array(described, np.float32)
        if name.startswith(BROKEN):
            continue
        for key, logits in run(model, name).items():
            written[f"{name}/{key}"] = logits
    np.savez_compressed(path, **written)


def write_layers(path):
    written = {}
    for name, layers in LAYERS.items():
        with unique_name.guard():
            model = builder(name)(class_num=CLASSES, return_patterns=list(layers))
        fill(model)
        model.eval()
        with paddle.no_grad():
            for key, value in model(paddle.to_tensor(images(SIDES))).items():
                written[f"{name}/{key}"] = value.numpy()
    np.savez(path, **written)


def products(_layer, tokens, _made):
    """Counts the multiply-adds of attention products, which have no layer of their own."""
    groups, count, width = tokens.shape
    return 2 * groups * count * count * width


def reduced_products(layer, tokens, _made):
    """Counts attention products of PVTv2 and Twins, which reduce keys and values of square images."""
    groups, count, channels = tokens.shape
    kept = 49 if getattr(layer, "linear", False) else int(count**0.5) ** 2 // layer.sr_ratio**2
    return 2 * groups * count * kept * channels


def window_products(layer, tokens, _made):
    """Counts attention products of Twins within windows."""
    groups, count, channels = tokens.shape
    return 2 * groups * count * layer.ws**2 * channels


def distance_products(layer, tokens, _made):
    """Counts attention products of LeViT: keys are narrower than values, and queries may be fewer."""
    queries, keys = layer.attention_bias_idxs.shape
    return tokens.shape[0] * layer.num_heads * queries * keys * (layer.key_dim + layer.d)


def strided_products(_layer, tokens, _made):
    """Counts attention products of CvT, where images are square and keys and values have half their side."""
    groups, count, width = tokens.shape
    side = int(count**0.5)
    keys = (side + 1) // 2 * ((side + 1) // 2) + count - side**2  # without and with the class token
    return 2 * groups * count * keys * width


def stripe_products(layer, tokens, _made):
    """Counts attention products of CSWin Transformer within windows."""
    groups, count, channels = tokens.shape
    return 2 * groups * count * layer.h_split * layer.w_split * channels


def averaged_products(layer, tokens, _made):
    """Counts attention products of Next-ViT, where several tokens have one key and value."""
    groups, count, channels = tokens.shape
    return 2 * groups * count * (count // layer.N_ratio) * channels


def dual_products(layer, image, _made):
    """Counts attention products of DSNet: within the smaller stream, and between both streams."""
    _, channels, height, width = image.shape
    small = height // layer.downsample * (width // layer.downsample)
    return channels * small * (small + 2 * height * width)


def shared_products(layer, image, _made):
    """Counts attention products of MobileNetV4, whose heads share keys and values."""
    count = image.shape[2] * image.shape[3]
    return 2 * image.shape[0] * layer.query_dim * count * (count // layer.kv_stride**2)


PRODUCTS = {  # by module and class
    ("dsnet", "MixBlock"): dual_products,
    ("cswin_transformer", "LePEAttention"): stripe_products,
    ("cvt", "Attention"): strided_products,
    ("levit", "Attention"): distance_products,
    ("levit", "AttentionSubsample"): distance_products,
    ("nextvit", "E_MHSA"): averaged_products,
    ("mobilenet_v4", "MobileAttention"): shared_products,
    ("pvt_v2", "Attention"): reduced_products,
    ("twins", "Attention"): reduced_products,
    ("twins", "GroupAttention"): window_products,
    **dict.fromkeys(
        [
            ("distilled_vision_transformer", "Attention"),
            ("mobilevit", "Attention"),
            ("mobilevit_v3", "MultiHeadAttention"),
            ("swin_transformer", "WindowAttention"),
            ("tnt", "Attention"),
            ("uniformer", "Attention"),
            ("vision_transformer", "Attention"),
        ],
        products,
    ),
}


def trained(build):
    """Returns the model; in PP-LCNetV2 without the convolutions for inference."""
    model = build()
    for layer in model.sublayers():
        count = PRODUCTS.get((type(layer).__module__.rpartition(".")[2], type(layer).__name__))
        if count is not None:
            type(layer).multiplications = count
        if getattr(layer, "use_rep", False):
            for parameter in layer.dw_conv.parameters():
                parameter.stop_gradient = True
    return model


def write_table(path, names):
    """Writes parameters, FLOPs, names and dropout rates of these or all of PaddleClas's models."""
    from ppcls.arch.cost import Cost, count_parameters, measure, measure_on
    from ppcls.zoo import ZOO

    table = {}
    for name in names or ZOO:
        build = builder(name)
        if build is None:
            continue
        shape = ZOO[name].input_shape
        if name.startswith(BROKEN):
            with unique_name.guard():
                model = build()
            described, cost = describe(model), Cost(count_parameters(model), None)
        elif name.startswith(EAGER):
            with paddle.no_grad(), unique_name.guard():
                model = trained(build)
                described, cost = describe(model), measure_on(model, paddle.zeros([1, *shape]))
        else:
            with paddle.LazyGuard(), unique_name.guard():
                described = describe(build())
            cost = measure(partial(trained, build), shape)
        table[name] = {"parameters": cost.parameters, "flops": cost.flops, **described}
    Path(path).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    lay_out()
    if sys.argv[1].endswith(".json"):
        write_table(sys.argv[1], sys.argv[2:])
    elif sys.argv[2:] == ["layers"]:
        write_layers(sys.argv[1])
    else:
        write_values(sys.argv[1], sys.argv[2:])
