"""Export to Paddle Inference and ONNX."""
