/* The few functions of CPython that launch.c uses. All of them and PyMethodDef have been the same since 3.9, so neither
 * the interpreter's headers nor its version matter. */
#pragma once
#include <stdint.h>

typedef struct _object PyObject;
typedef intptr_t Py_ssize_t;
typedef struct {
  const char *name;
  void *function;
  int flags;
  const char *doc;
} PyMethodDef;
#define METH_FASTCALL 0x0080

extern PyObject _Py_NoneStruct, _Py_TrueStruct, *PyExc_Exception;
#define Py_None (&_Py_NoneStruct)
#define Py_True (&_Py_TrueStruct)

void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *self, PyObject *module);
PyObject *PyCapsule_New(void *, const char *name, void (*destructor)(PyObject *));
void *PyCapsule_GetPointer(PyObject *, const char *name);
int PyDict_Contains(PyObject *, PyObject *key);
PyObject *PyDict_GetItem(PyObject *, PyObject *key); /* borrowed; NULL without an error */
void PyErr_Clear(void);
int PyErr_ExceptionMatches(PyObject *);
PyObject *PyErr_Occurred(void); /* borrowed */
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
double PyFloat_AsDouble(PyObject *);
Py_ssize_t PyList_Size(PyObject *);
long long PyLong_AsLongLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *name);
PyObject *PyObject_Type(PyObject *);
PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *arguments, uintptr_t count, PyObject *names);
PyObject *PyObject_VectorcallMethod(PyObject *name, PyObject *const *arguments, uintptr_t count, PyObject *names);
PyObject *PyUnicode_InternFromString(const char *);
