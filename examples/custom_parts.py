"""Defines an architecture, a loss, a metric, an optimizer, a transform and a hook for use in a config.

    PYTHONPATH=examples python tools/train.py -c examples/custom_parts.yaml

The config names this module in `Global.import_modules`. ppcls imports the module before Paddle, so the module
imports Paddle only inside functions.
"""

import numpy as np
from sklearn.metrics import matthews_corrcoef

from ppcls import RunHook
from ppcls.config.custom import register_architecture
from ppcls.data.transforms.base import CustomTransform
from ppcls.loss import Loss
from ppcls.metric.base import DatasetMetric
from ppcls.optimizer.base import CoupledOptimizer

register_architecture("TinyNet", "custom_parts:tiny_net")


def tiny_net(class_num, data_format, input_image_channel):
    """Returns a network of two convolutions and a linear layer, from images to logits [B, class_num]."""
    from paddle import nn

    layers = []
    for inputs, outputs in ((input_image_channel, 16), (16, 32)):
        layers.append(nn.Conv2D(inputs, outputs, 3, stride=2, padding=1, data_format=data_format))
        layers += [nn.BatchNorm2D(outputs, data_format=data_format), nn.ReLU()]
    pool = nn.AdaptiveAvgPool2D(4, data_format=data_format)
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(32 * 4 * 4, class_num))


class PolyLoss(Loss):
    """Cross-entropy plus `epsilon` times (1 - probability of the label) (Leng et al. 2022)."""

    epsilon: float = 1.0
    """Factor of the second term."""

    def build(self, data):
        """Returns a function from logits [B, C] and labels to the mean loss."""
        from paddle.nn import functional as F

        def loss(logits, label):
            target = label if label.ndim == 2 else F.one_hot(label, logits.shape[-1])
            log_p = F.log_softmax(logits.astype("float32"))
            cost = -(target * log_p).sum(axis=-1) + self.epsilon * (1 - (target * log_p.exp()).sum(axis=-1))
            return cost.mean()

        return loss


class Matthews(DatasetMetric):
    """Matthews correlation coefficient, a metric for imbalanced classes."""

    def compute(self, scores, labels):
        """Returns a list with the coefficient, in [-1, 1]."""
        return [matthews_corrcoef(labels, scores.argmax(axis=1))]


class Adamax(CoupledOptimizer):
    """Adamax (Kingma and Ba 2015, section 7.1)."""

    beta1: float = 0.9
    """Decay of the first moment."""

    def build(self, **common):
        """Returns Paddle's optimizer."""
        from paddle import optimizer

        return optimizer.Adamax(beta1=self.beta1, **common)


class RandomInvert(CustomTransform):
    """Inverts 8-bit images with probability `prob`."""

    draws = 1
    prob: float = 0.1
    """Share of the images to invert."""

    def apply(self, image, draws):
        """Returns the image or its negative."""
        return np.uint8(255) - image if draws[0] < self.prob else image


class WeightNorm(RunHook):
    """Logs the norm of all weights at each evaluation, and how the run ended."""

    def __init__(self, digits=4):
        """Stores the number of digits to log."""
        self.digits = digits

    def on_evaluation(self, run, record):
        """Logs the norm of all weights."""
        norm = sum(float((parameter**2).sum()) for parameter in run.state.model.parameters()) ** 0.5
        run.log(f"epoch {record.epoch}: norm of the weights {norm:.{self.digits}g}")

    def on_end(self, run, error):
        """Logs whether the run is complete or which error ended it."""
        run.log("the run is complete" if error is None else f"the run was ended by: {error}")
