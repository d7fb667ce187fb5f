"""Architectures, one family per file. Their parameters have the names and shapes of PaddleClas.

Every network has the arguments ``class_num``, ``data_format`` and ``input_image_channel``, which
`ppcls.arch.build.build_model` describes.

Decisions:
- Names, shapes and initial values of parameters are PaddleClas's, also where they look odd, because its
  checkpoints and its results must remain usable. Tests compare them, and the logits, with its wheel.
- Where PaddleClas computes other numbers than timm, ``timm_variant`` builds timm's network.
- Parameters have the same shapes for NCHW and NHWC images, so that a checkpoint fits both.
- Images may have any size that the paper allows, also where PaddleClas rejects it. Therefore pooling in
  shortcuts rounds up, and windows are padded.
- Methods of base classes are called by the name of the class (``ConvNorm.forward(self, x)``), because Paddle
  2.6 cannot compile ``super()``.
"""
