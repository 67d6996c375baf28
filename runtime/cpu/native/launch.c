/* What Triton calls for one launch: a function of Python that goes from its arguments straight to the pool.
 *
 * It knows launches with nothing special about them: whole numbers as grid, tensors of the CPU and numbers as arguments,
 * no hooks, nobody who records or times launches. Any other it hands to the launcher in Python (launcher.py) before it
 * has done anything, and so every error is that one's. */
#include "python.h"
#include "pool.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define CP_MOST_ARGUMENTS 128
#define CP_LARGEST INT32_MAX            /* LARGEST and MOST_PROGRAMS of boundary.py */
#define CP_MOST_PROGRAMS 4294967295.0

/* Triton's arguments of a launch; those of the kernel follow. */
enum { GRID, FUNCTION = 4, ENTER_HOOK = 7, EXIT_HOOK = 8, FIRST = 9 };

typedef struct {
  PyObject *general; /* the launcher in Python */
  int count;
  char formats[CP_MOST_ARGUMENTS]; /* per argument: p a tensor, q Q d numbers as in struct, - known when it was compiled */
} direct;

/* Whoever wants to see launches, and how hooks look; see cp_watch_launches. */
static struct {
  PyObject *launcher, *profiling, *watched, *chain;
  PyObject *recorder, *current, *calls, *is_cpu, *data_ptr; /* names */
} python;

void cp_watch_launches(PyObject *launcher, PyObject *profiling, PyObject *watched, PyObject *chain) {
  PyObject *kept[] = {launcher, profiling, watched, chain};
  for (int k = 0; k < 4; k++) Py_IncRef(kept[k]);
  python.launcher = launcher, python.profiling = profiling, python.watched = watched, python.chain = chain;
  python.recorder = PyUnicode_InternFromString("recorder"), python.current = PyUnicode_InternFromString("current");
  python.calls = PyUnicode_InternFromString("calls"), python.is_cpu = PyUnicode_InternFromString("is_cpu");
  python.data_ptr = PyUnicode_InternFromString("data_ptr");
}

/* Is a launch of this kernel of interest to somebody: a capture, a profile, its own assertions? */
static bool is_watched(PyObject *function) {
  return PyDict_GetItem(python.launcher, python.recorder) != Py_None ||
         PyDict_GetItem(python.profiling, python.current) != Py_None || PyDict_Contains(python.watched, function) != 0;
}

/* A hook that does nothing: None, or a chain (Triton 3.7) without a link. */
static bool is_idle(PyObject *hook) {
  if (hook == Py_None) return true;
  PyObject *type = PyObject_Type(hook);
  Py_DecRef(type);
  if (type != python.chain) return false;
  PyObject *calls = PyObject_GetAttr(hook, python.calls);
  if (!calls) return false;
  bool idle = PyList_Size(calls) == 0;
  Py_DecRef(calls);
  return idle;
}

static bool read_grid(PyObject *const *sizes, uint32_t *grid) {
  double programs = 1;
  for (int d = 0; d < 3; d++) {
    long long size = PyLong_AsLongLong(sizes[d]);
    if (size < 0 || size > CP_LARGEST) return false;
    grid[d] = (uint32_t)size;
    programs *= (double)size;
  }
  return programs <= CP_MOST_PROGRAMS;
}

static bool read_address(PyObject *tensor, uint64_t *address) {
  PyObject *on_cpu = PyObject_GetAttr(tensor, python.is_cpu);
  if (!on_cpu) return false;
  Py_DecRef(on_cpu);
  if (on_cpu != Py_True) return false;
  PyObject *number = PyObject_VectorcallMethod(python.data_ptr, &tensor, 1, NULL);
  if (!number) return false;
  *address = PyLong_AsUnsignedLongLong(number);
  Py_DecRef(number);
  return true;
}

/* One argument in 8 bytes, as _FORMATS of launcher.py says. May leave an error that the caller looks for. */
static bool pack(char format, PyObject *argument, uint64_t *packed) {
  if (format == 'p') return read_address(argument, packed);
  if (format == 'q') *packed = (uint64_t)PyLong_AsLongLong(argument);
  if (format == 'Q') *packed = PyLong_AsUnsignedLongLong(argument);
  if (format == 'd') {
    double number = PyFloat_AsDouble(argument);
    memcpy(packed, &number, sizeof number);
  }
  return true;
}

static bool pack_all(const direct *d, PyObject *const *arguments, uint64_t *packed) {
  for (int k = 0; k < d->count; k++)
    if (d->formats[k] != '-' && !pack(d->formats[k], arguments[k], packed++)) return false;
  return !PyErr_Occurred();
}

static PyObject *launch(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  const direct *d = PyCapsule_GetPointer(self, NULL);
  uint32_t grid[3];
  uint64_t packed[CP_MOST_ARGUMENTS];
  bool plain = count == FIRST + d->count && !is_watched(arguments[FUNCTION]) && is_idle(arguments[ENTER_HOOK]) &&
               is_idle(arguments[EXIT_HOOK]) && read_grid(arguments + GRID, grid) &&
               pack_all(d, arguments + FIRST, packed);
  if (!plain) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL; /* KeyboardInterrupt */
    PyErr_Clear();
    return PyObject_Vectorcall(d->general, arguments, (uintptr_t)count, NULL);
  }
  cp_kernel run = (cp_kernel)(uintptr_t)PyLong_AsUnsignedLongLong(arguments[FUNCTION]);
  void *thread = PyEval_SaveThread();
  cp_run_one(run, (const char *)packed, grid[0], grid[1], grid[2]);
  PyEval_RestoreThread(thread);
  Py_IncRef(Py_None);
  return Py_None;
}

static void forget(PyObject *capsule) {
  direct *d = PyCapsule_GetPointer(capsule, NULL);
  Py_DecRef(d->general);
  free(d);
}

/* The function to launch a kernel with, whose arguments are as `formats` says, one letter each; NULL with an error, or
 * None if there are too many. */
PyObject *cp_direct_launcher(PyObject *general, const char *formats) {
  static PyMethodDef method = {"launch", launch, METH_FASTCALL, NULL};
  size_t count = strlen(formats);
  direct *d = count <= CP_MOST_ARGUMENTS ? malloc(sizeof *d) : NULL;
  if (!d) {
    Py_IncRef(Py_None);
    return Py_None;
  }
  d->general = general;
  d->count = (int)count;
  memcpy(d->formats, formats, count);
  Py_IncRef(general);
  PyObject *capsule = PyCapsule_New(d, NULL, forget);
  PyObject *function = capsule ? PyCFunction_NewEx(&method, capsule, NULL) : NULL;
  if (capsule) Py_DecRef(capsule);
  return function;
}
