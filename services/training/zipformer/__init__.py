"""Streaming zipformer transducers in sherpa-onnx's format, of any shape, without torch."""
