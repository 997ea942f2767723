// The Python module torch_qmm._C: loading it registers the operators; its functions are for tests and `doctor`.
#include <Python.h>

#include "cpu/kernels.h"
#include "formats.h"

namespace {

// formats() -> list of (name, id, weights per block, bytes per block)
PyObject* formats(PyObject*, PyObject*) {
  PyObject* rows = PyList_New(0);
  if (rows == nullptr) return nullptr;
  for (const qmm::FormatInfo& f : qmm::kFormats) {
    PyObject* row = Py_BuildValue("(sLLL)", f.name, static_cast<long long>(f.id),
                                  static_cast<long long>(f.block_weights), static_cast<long long>(f.block_bytes));
    const bool failed = row == nullptr || PyList_Append(rows, row) != 0;
    Py_XDECREF(row);
    if (failed) {
      Py_DECREF(rows);
      return nullptr;
    }
  }
  return rows;
}

// cpu_isas() -> names of the instruction sets that this processor can run, best first
PyObject* cpu_isas(PyObject*, PyObject*) {
  const char* names[8];
  const int count = qmm::cpu::available_isas(names, 8);
  PyObject* list = PyList_New(count);
  for (int i = 0; list != nullptr && i < count; ++i) {
    PyList_SetItem(list, i, PyUnicode_FromString(names[i]));
  }
  return list;
}

PyObject* cpu_isa(PyObject*, PyObject*) { return PyUnicode_FromString(qmm::cpu::current_isa()); }

PyObject* set_cpu_isa(PyObject*, PyObject* name) {
  PyObject* bytes = PyUnicode_AsUTF8String(name);
  if (bytes == nullptr) return nullptr;
  const bool known = qmm::cpu::set_isa(PyBytes_AsString(bytes));
  Py_DECREF(bytes);
  if (!known) {
    PyErr_Format(PyExc_ValueError, "isa: got %R, want one of torch_qmm._C.cpu_isas()", name);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"formats", formats, METH_NOARGS, "The table of formats as C++ sees it."},
    {"cpu_isas", cpu_isas, METH_NOARGS, "Instruction sets this processor can run, best first."},
    {"cpu_isa", cpu_isa, METH_NOARGS, "The instruction set in force."},
    {"set_cpu_isa", set_cpu_isa, METH_O, "Choose an instruction set, for tests and measurements."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
