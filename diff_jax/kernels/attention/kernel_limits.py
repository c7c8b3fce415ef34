# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What no kernel of ours takes, whatever it runs on."""

MAX_MAPS = 2


def unsupported(
    q, v, *, dtypes, max_width: int, bias_slopes=None, sink=None
) -> str | None:
  """Why a kernel cannot take a call, in words; None if nothing here forbids it.

  Args:
    q, v, bias_slopes, sink: as for `api.attention`.
    dtypes: names of those that it takes.
    max_width: of one map, and of half a value head.
  """
  h, e = q.shape[-1], v.shape[-1]
  if q.dtype.name not in dtypes:
    return f"q.dtype={q.dtype} is neither {' nor '.join(dtypes)}"
  if q.shape[3] > MAX_MAPS:
    return f"q.shape={q.shape} has {q.shape[3]} maps, more than {MAX_MAPS}"
  if h > max_width or e > 2 * max_width:
    return f"(h, e)={h, e} is wider than {max_width, 2 * max_width}"
  for name, x in (("bias_slopes", bias_slopes), ("sink", sink)):
    if x is not None:
      return f"{name} is given"
  return None
