"""torch_qmm: quantized weights stay packed in PyTorch and are multiplied at full speed."""

from torch_qmm.formats import Format
from torch_qmm.nn import QuantEmbedding, QuantLinear
from torch_qmm.ops import dequantize, embedding, linear, mul_mm, mul_mv
from torch_qmm.tensor import QuantTensor

__version__ = "0.1.0"

__all__ = [
    "Format",
    "QuantEmbedding",
    "QuantLinear",
    "QuantTensor",
    "dequantize",
    "embedding",
    "linear",
    "load_model",
    "mul_mm",
    "mul_mv",
]


def __getattr__(name: str):
    # load_model needs transformers, which takes seconds to import and not every user has.
    if name == "load_model":
        from torch_qmm.models import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
