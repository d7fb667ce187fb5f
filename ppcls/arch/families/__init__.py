"""Architectures, one family per file, with the parameter names and shapes of PaddleClas.

Every network has the arguments ``class_num``, ``data_format`` and ``input_image_channel`` of
`ppcls.arch.build.build_model`. Parameters have the same shapes in both layouts.
"""
