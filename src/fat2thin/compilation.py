"""Jitted functions whose programs run for a shorter time than XLA takes to optimise them."""

import functools
from collections.abc import Callable
from typing import Any

import jax


class QuicklyCompiled:
    """A jitted function that LLVM optimises little on a CPU; elsewhere it is like `jax.jit`.

    Level 1 is simple optimisations, 0 none. Neither changes how XLA fuses operations, but level 1
    may change the bits of sums over many numbers, and 0 those of functions such as `tanh`. Use it
    where `tests/engine/test_quick_compilation.py` shows that the result keeps all bits.
    """

    def __init__(self, function: Callable, level: int = 1, **options: Any) -> None:
        """`options` are those of `jax.jit`."""
        functools.update_wrapper(self, function)
        self._function, self._level, self._options = function, level, options

    @functools.cached_property
    def _jitted(self) -> Any:
        # Decided at the first call: the backend is not known when modules are imported.
        options = None
        # With most optimisations disabled, all programs have level 0.
        if jax.default_backend() == "cpu" and not jax.config.read("jax_disable_most_optimizations"):
            options = {"xla_backend_optimization_level": self._level}
        return jax.jit(self._function, compiler_options=options, **self._options)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the compiled function, or the function itself inside of another program."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, named))):
            return self._function(*arguments, **named)
        return self._jitted(*arguments, **named)

    def eval_shape(self, *arguments: Any, **named: Any) -> Any:
        """Return the shapes of the result, without compiling anything."""
        return self._jitted.eval_shape(*arguments, **named)

    def clear_cache(self) -> None:
        """Release the compiled programs."""
        self._jitted.clear_cache()
