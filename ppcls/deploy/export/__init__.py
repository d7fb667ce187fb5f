"""Export of trained models to Paddle Inference, ONNX, OpenVINO and timm."""
