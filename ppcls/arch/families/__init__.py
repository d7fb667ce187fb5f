"""Architectures, one family per file. Their parameters have the names and shapes of PaddleClas.

Every network has the arguments ``class_num``, ``data_format`` and ``input_image_channel``, which
`ppcls.arch.build.build_model` describes. Parameters have the same shapes for NCHW and NHWC images.
"""
