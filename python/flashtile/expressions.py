# SPDX-License-Identifier: Apache-2.0
"""Python functions as expressions of flashtile.

A function that is called with symbols instead of numbers, and gives back what it does with them, is
an expression. Symbols know Python's operators (// and % as Python has them), the functions of this
module, and numpy's and PyTorch's of the same names. What they cannot be is a condition of `if`,
`and`, `or`, `not` or a chained comparison: write `where`, `&`, `|`, `~`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Union

__all__ = ["Expression", "TraceError", "cos", "exp", "floor", "log", "log2", "maximum", "minimum",
           "sigmoid", "sin", "sqrt", "tanh", "to_float", "to_int", "trace", "where"]

VARIABLES = {"score": "float", "batch": "int", "head": "int", "head_kv": "int", "q_idx": "int",
             "k_idx": "int", "seqlen_q": "int", "seqlen_k": "int", "query_offset": "int"}
# What functions are called with by position.
_POSITIONAL = {"score": ("score", "batch", "head", "q_idx", "k_idx"),
               "mask": ("batch", "head", "q_idx", "k_idx")}
_FUNCTIONS = {"exp", "log", "log2", "tanh", "sigmoid", "sqrt", "sin", "cos", "floor"}


class TraceError(ValueError):
    """A function that cannot be an expression."""


Operand = Union["Expression", int, float, bool]


class Expression:
    """A value that is not known yet: a text, and whether it is a "float", an "int" or a "bool"."""

    __slots__ = ("kind", "text")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str, kind: str) -> None:
        self.text = text
        self.kind = kind

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __str__(self) -> str:
        return self.text

    def _refuse(self, what: str) -> TraceError:
        return TraceError(f"cannot trace: {what} of '{self.text}', which has no value yet")

    def __bool__(self) -> bool:
        raise self._refuse("the truth value (if, and, or, not, a < b < c; use where, &, |, ~)")

    def __index__(self) -> int:
        raise self._refuse("an index or range (arrays are read through aux={'name': array} and a "
                           "parameter of that name)")

    def __float__(self) -> float:
        raise self._refuse("float() (functions of flashtile.expressions take symbols, math's "
                           "do not)")

    def __int__(self) -> int:
        raise self._refuse("int() (use to_int)")

    def __iter__(self) -> Any:
        raise self._refuse("a loop")

    def __add__(self, other: Operand) -> Expression:
        return _arithmetic("+", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return _arithmetic("+", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return _arithmetic("-", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return _arithmetic("-", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return _arithmetic("*", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return _arithmetic("*", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return _divided(self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return _divided(other, self)

    def __floordiv__(self, other: Operand) -> Expression:
        return _floor_divided(self, other)

    def __rfloordiv__(self, other: Operand) -> Expression:
        return _floor_divided(other, self)

    def __mod__(self, other: Operand) -> Expression:
        return _remainder(self, other)

    def __rmod__(self, other: Operand) -> Expression:
        return _remainder(other, self)

    def __pow__(self, other: Operand) -> Expression:
        return _called("pow", self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return _called("pow", other, self)

    def __lshift__(self, other: Operand) -> Expression:
        return _bits("<<", self, other)

    def __rshift__(self, other: Operand) -> Expression:
        return _bits(">>", self, other)

    def __and__(self, other: Operand) -> Expression:
        return _logical("&", self, other)

    def __rand__(self, other: Operand) -> Expression:
        return _logical("&", other, self)

    def __or__(self, other: Operand) -> Expression:
        return _logical("|", self, other)

    def __ror__(self, other: Operand) -> Expression:
        return _logical("|", other, self)

    def __xor__(self, other: Operand) -> Expression:
        return _logical("^", self, other)

    def __rxor__(self, other: Operand) -> Expression:
        return _logical("^", other, self)

    def __invert__(self) -> Expression:
        if self.kind == "bool":
            return Expression(f"(!{self.text})", "bool")
        if self.kind == "int":
            return Expression(f"(-{self.text} - 1)", "int")
        raise self._refuse("~ of a float")

    def __neg__(self) -> Expression:
        return Expression(f"(-{self.text})", _number(self.kind))

    def __pos__(self) -> Expression:
        return self

    def __abs__(self) -> Expression:
        return _called("abs", self, kind=_number(self.kind))

    def __floor__(self) -> Expression:
        return to_int(floor(self))

    # What and_masks and or_masks of PyTorch and of Transformers ask of an index, as of a tensor.
    device = None

    def new_ones(self, size: tuple[()], dtype: Any = None, device: Any = None) -> Expression:
        return _filled(True, size, dtype)

    def new_zeros(self, size: tuple[()], dtype: Any = None, device: Any = None) -> Expression:
        return _filled(False, size, dtype)

    def to(self, device: Any) -> Expression:
        if type(device).__name__ == "dtype":
            raise self._refuse(".to(dtype) (use to_float or to_int)")
        return self

    def __lt__(self, other: Operand) -> Expression:
        return _compared("<", self, other)

    def __le__(self, other: Operand) -> Expression:
        return _compared("<=", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return _compared(">", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return _compared(">=", self, other)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _compared("==", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _compared("!=", self, other)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Expression:
        if method != "__call__" or kwargs:
            raise self._refuse(f"numpy.{ufunc.__name__}.{method}")
        return apply_named(ufunc.__name__, "numpy", inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Expression:
        if kwargs:
            raise self._refuse(f"numpy.{func.__name__} with keywords")
        return apply_named(func.__name__, "numpy", args)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        from flashtile import _torch_trace
        return _torch_trace.apply(func, args, kwargs or {})


class Aux:
    """An aux tensor in a function that is traced: index it to read an element."""

    __slots__ = ("kind", "name", "ndim")

    def __init__(self, name: str, kind: str, ndim: int) -> None:
        self.name = name
        self.kind = kind
        self.ndim = ndim

    def __getitem__(self, index: Any) -> Expression:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != self.ndim:
            raise TraceError(f"cannot trace: {self.name} has {self.ndim} dimensions, found "
                             f"{len(indices)} indices (an element needs one for each)")
        lifted = [lift(entry) for entry in indices]
        for entry in lifted:
            if entry.kind == "float":
                raise TraceError(f"cannot trace: index '{entry.text}' of {self.name} is a float "
                                 "(use to_int)")
        return self.read(f"{self.name}[{', '.join(entry.text for entry in lifted)}]")

    def read(self, element: str) -> Expression:
        """An element as a symbol; truth values are kept as numbers."""
        return Expression(f"({element} != 0)" if self.kind == "bool" else element, self.kind)


def _number(kind: str) -> str:
    return "int" if kind == "bool" else kind


def _filled(value: bool, size: tuple[()], dtype: Any) -> Expression:
    if tuple(size) != () or not str(dtype).endswith("bool"):
        raise TraceError(f"cannot trace: new_ones or new_zeros of size {tuple(size)} and dtype "
                         f"{dtype}, expected () and bool")
    return lift(value)


def lift(value: Any) -> Expression:
    """A symbol or number as an Expression."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, bool):
        return Expression("1" if value else "0", "bool")
    if isinstance(value, int):
        return Expression(str(value) if value >= 0 else f"({value})", "int")
    if isinstance(value, float):
        if math.isnan(value):
            raise TraceError("cannot trace: nan is no constant")
        if math.isinf(value):
            return Expression("(1.0 / 0.0)" if value > 0 else "(-1.0 / 0.0)", "float")
        return Expression(repr(value) if value >= 0 else f"({value!r})", "float")
    if isinstance(value, Aux) and value.ndim == 0:
        return value.read(value.name)
    if type(value).__module__.partition(".")[0] == "torch":
        from flashtile import _torch_trace
        return _torch_trace.element(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return lift(value.item())
    raise TraceError(f"cannot trace: found a {type(value).__name__}, expected a symbol or a number "
                     "(arrays are read through aux={'name': array} and a parameter of that name)")


def _pair(a: Any, b: Any) -> tuple[Expression, Expression, str]:
    left, right = lift(a), lift(b)
    is_float = "float" in (left.kind, right.kind)
    return left, right, "float" if is_float else "int"


def _arithmetic(operator: str, a: Any, b: Any) -> Expression:
    left, right, kind = _pair(a, b)
    return Expression(f"({left.text} {operator} {right.text})", kind)


def _divided(a: Any, b: Any) -> Expression:
    left, right, kind = _pair(a, b)
    text = left.text if kind == "float" else f"float({left.text})"
    return Expression(f"({text} / {right.text})", "float")


def _floor_divided(a: Any, b: Any) -> Expression:
    left, right, kind = _pair(a, b)
    if kind == "int":
        return Expression(f"floordiv({left.text}, {right.text})", "int")
    return Expression(f"floor({left.text} / {right.text})", "float")


def _remainder(a: Any, b: Any) -> Expression:
    left, right, kind = _pair(a, b)
    if kind == "int":
        return Expression(f"floormod({left.text}, {right.text})", "int")
    text = f"({left.text} - {right.text} * floor({left.text} / {right.text}))"
    return Expression(text, "float")


def _bits(operator: str, a: Any, b: Any) -> Expression:
    left, right, kind = _pair(a, b)
    if kind == "float":
        raise TraceError(f"cannot trace: {operator} of floats, '{left.text}' and '{right.text}'")
    return Expression(f"({left.text} {operator} {right.text})", "int")


def _logical(operator: str, a: Any, b: Any) -> Expression:
    left, right, _ = _pair(a, b)
    if left.kind != "bool" or right.kind != "bool":
        return _bits(operator, left, right)
    for one, other in ((left, right), (right, left)):
        if one.text == {"&": "1", "|": "0", "^": "0"}[operator]:
            return other
    spelt = {"&": "&&", "|": "||", "^": "!="}[operator]
    return Expression(f"({left.text} {spelt} {right.text})", "bool")


def _compared(operator: str, a: Any, b: Any) -> Expression:
    left, right, _ = _pair(a, b)
    return Expression(f"({left.text} {operator} {right.text})", "bool")


def _called(name: str, *args: Any, kind: str = "float") -> Expression:
    return Expression(f"{name}({', '.join(lift(arg).text for arg in args)})", kind)


def exp(a: Operand) -> Expression:
    """e to the a."""
    return _called("exp", a)


def log(a: Operand) -> Expression:
    """The natural logarithm."""
    return _called("log", a)


def log2(a: Operand) -> Expression:
    """The logarithm to base 2."""
    return _called("log2", a)


def tanh(a: Operand) -> Expression:
    """The hyperbolic tangent."""
    return _called("tanh", a)


def sigmoid(a: Operand) -> Expression:
    """1 / (1 + exp(-a))."""
    return _called("sigmoid", a)


def sqrt(a: Operand) -> Expression:
    """The square root."""
    return _called("sqrt", a)


def sin(a: Operand) -> Expression:
    """The sine; a in radians."""
    return _called("sin", a)


def cos(a: Operand) -> Expression:
    """The cosine; a in radians."""
    return _called("cos", a)


def floor(a: Operand) -> Expression:
    """The largest whole number not above a, as a float."""
    return _called("floor", a)


def minimum(a: Operand, b: Operand) -> Expression:
    """The smaller one."""
    return _called("min", a, b, kind=_pair(a, b)[2])


def maximum(a: Operand, b: Operand) -> Expression:
    """The larger one."""
    return _called("max", a, b, kind=_pair(a, b)[2])


def where(condition: Operand, a: Operand, b: Operand) -> Expression:
    """a where the condition holds, else b; the other one has no effect at all."""
    left, right, kind = _pair(a, b)
    if left.kind == right.kind:
        kind = left.kind
    return Expression(f"({lift(condition).text} ? {left.text} : {right.text})", kind)


def to_int(a: Operand) -> Expression:
    """Truncated towards zero."""
    return _called("int", a, kind="int")


def to_float(a: Operand) -> Expression:
    """The same number as a float."""
    return _called("float", a)


def _is_not(a: Operand) -> Expression:
    return Expression(f"(!{lift(a).text})", "bool")


def _is_both(a: Operand, b: Operand) -> Expression:
    return Expression(f"({lift(a).text} && {lift(b).text})", "bool")


def _is_either(a: Operand, b: Operand) -> Expression:
    return Expression(f"({lift(a).text} || {lift(b).text})", "bool")


# What numpy and PyTorch call these.
_NAMED: dict[str, Callable[..., Expression]] = {
    **{name: globals()[name] for name in _FUNCTIONS},
    "where": where, "minimum": minimum, "maximum": maximum, "absolute": lambda a: abs(lift(a)),
    "abs": lambda a: abs(lift(a)), "negative": lambda a: -lift(a), "neg": lambda a: -lift(a),
    "power": lambda a, b: _called("pow", a, b), "pow": lambda a, b: _called("pow", a, b),
    "add": lambda a, b: _arithmetic("+", a, b), "subtract": lambda a, b: _arithmetic("-", a, b),
    "sub": lambda a, b: _arithmetic("-", a, b), "rsub": lambda a, b: _arithmetic("-", b, a),
    "multiply": lambda a, b: _arithmetic("*", a, b), "mul": lambda a, b: _arithmetic("*", a, b),
    "divide": _divided, "true_divide": _divided, "div": _divided,
    "floor_divide": _floor_divided, "remainder": _remainder, "mod": _remainder,
    "less": lambda a, b: _compared("<", a, b), "lt": lambda a, b: _compared("<", a, b),
    "less_equal": lambda a, b: _compared("<=", a, b), "le": lambda a, b: _compared("<=", a, b),
    "greater": lambda a, b: _compared(">", a, b), "gt": lambda a, b: _compared(">", a, b),
    "greater_equal": lambda a, b: _compared(">=", a, b), "ge": lambda a, b: _compared(">=", a, b),
    "equal": lambda a, b: _compared("==", a, b), "eq": lambda a, b: _compared("==", a, b),
    "not_equal": lambda a, b: _compared("!=", a, b), "ne": lambda a, b: _compared("!=", a, b),
    "logical_not": _is_not, "logical_and": _is_both, "logical_or": _is_either,
    "bitwise_and": lambda a, b: _logical("&", a, b), "bitwise_or": lambda a, b: _logical("|", a, b),
    "bitwise_xor": lambda a, b: _logical("^", a, b), "bitwise_not": lambda a: ~lift(a),
    "invert": lambda a: ~lift(a),
}


def apply_named(name: str, library: str, args: Any) -> Expression:
    """A function of another library, by the name that it has there."""
    function = _NAMED.get(name.strip("_"))
    if function is None:
        raise TraceError(f"cannot trace: {library}.{name} has no counterpart in expressions")
    return function(*args)


def _kind_of(array: Any) -> str:
    return "int" if "int" in str(array.dtype) else "float"


def _symbols(names: tuple[str, ...]) -> list[Expression]:
    return [Expression(name, VARIABLES[name]) for name in names]


def _arguments(function: Callable[..., Any], slot: str, aux: Mapping[str, Any],
               params: Mapping[str, float]) -> tuple[list[Any], dict[str, Any]]:
    """What to call a function with: by name where all its names are known, else by position."""
    known: dict[str, Any] = {name: Expression(name, kind) for name, kind in VARIABLES.items()
                             if slot == "score" or name != "score"}
    for name, array in aux.items():
        entry = Aux(name, _kind_of(array), len(array.shape))
        known[name] = lift(entry) if entry.ndim == 0 else entry
    known.update({name: Expression(f"param.{name}", "float") for name in params})
    positional = _symbols(_POSITIONAL[slot])
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return positional, {}
    names = [entry.name for entry in parameters if entry.default is entry.empty]
    if any(entry.kind == entry.VAR_POSITIONAL for entry in parameters):
        return positional, {}
    if all(name in known for name in names):
        return [], {name: known[name] for name in names}
    rest = names[len(positional):]
    if len(names) < len(positional) or any(name not in known for name in rest):
        raise TraceError(
            f"cannot trace: the {slot} function has the parameters ({', '.join(names)}), expected "
            f"({', '.join(_POSITIONAL[slot])}) under any names and then names of aux or params, or "
            f"only names out of {', '.join(known)}")
    return positional, {name: known[name] for name in rest}


def trace(function: Callable[..., Any], slot: str = "score", *,
          aux: Mapping[str, Any] | None = None,
          params: Mapping[str, float] | None = None) -> tuple[str, dict[str, Any]]:
    """The expression text of a Python function, and the tensors that it reads by closure.

    Args:
        function: a score, f(score, batch, head, q_idx, k_idx), or a mask, f(batch, head, q_idx,
            k_idx), with any names. More parameters are found by their names among `aux` and
            `params`. A function all of whose parameters have names that expressions know (also
            head_kv, seqlen_q, seqlen_k, query_offset) is called by name, in any order.
        slot: "score" or "mask".
        aux: arrays that the expression may read, by name.
        params: scalars, by name.

    Returns:
        The text, and the PyTorch tensors that the function indexes although they are in no `aux`,
        by the names that the text has for them.

    Raises:
        TraceError: (a ValueError) the function cannot be an expression.

    >>> flashtile.trace(lambda s, b, h, i, j: s - abs(i - j) / 8)[0]
    '(score - (float(abs((q_idx - k_idx))) / 8))'
    """
    if slot not in _POSITIONAL:
        raise ValueError(f"slot is '{slot}', expected 'score' or 'mask'")
    args, kwargs = _arguments(function, slot, aux or {}, params or {})
    captured: dict[str, Any] = {}
    capturing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if "torch" in sys.modules:
        from flashtile import _torch_trace
        capturing = _torch_trace.capturing(captured, prefix=slot)
    try:
        with capturing:
            return lift(function(*args, **kwargs)).text, captured
    except IndexError as error:  # numpy's, of an index that is no number
        raise TraceError(f"cannot trace: {error} (arrays are read through aux={{'name': array}} "
                         "and a parameter of that name)") from error
    except AttributeError as error:
        if "'Expression' object" not in str(error):
            raise
        raise TraceError(f"cannot trace: {error}") from error
