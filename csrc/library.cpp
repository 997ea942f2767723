// Operator schemas. Kernels are registered per device: csrc/cpu/ops.cpp, csrc/metal/ops.mm; the fake (meta)
// kernels and the derivatives are in torch_qmm/ops.py. `format` is the id of torch_qmm.Format; `scales` and
// `biases` belong to formats that keep them apart from the packed weight.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(qmm, m) {
  m.def("mul_mv(Tensor x, Tensor weight, int format, Tensor? scales=None, Tensor? biases=None) -> Tensor");
  m.def(
      "mul_mm(Tensor x, Tensor weight, int format, Tensor? scales=None, Tensor? biases=None, *, int? tile=None) -> "
      "Tensor");
  m.def(
      "linear(Tensor x, Tensor weight, int format, Tensor? scales=None, Tensor? biases=None, Tensor? bias=None) -> "
      "Tensor");
  m.def("mul_mm_t(Tensor grad, Tensor weight, int format, Tensor? scales=None, Tensor? biases=None) -> Tensor");
  m.def(
      "embedding(Tensor ids, Tensor weight, int format, Tensor? scales=None, Tensor? biases=None, *, ScalarType dtype) "
      "-> Tensor");
  m.def(
      "dequantize(Tensor weight, int format, Tensor? scales=None, Tensor? biases=None, *, ScalarType dtype) -> Tensor");
}
