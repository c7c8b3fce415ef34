# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the errors of a disk mean, also when TensorStore tells them."""

import errno
import re

# Waiting does not mend these: the folder is gone, or not ours to write.
FATAL_ERRNOS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM}
)


def one_line(error: Exception) -> str:
  """The end of an error that matters: without TensorStore's specification."""
  text = " ".join(str(error).split()) or type(error).__name__
  text = text.split(" See full TensorStore details")[0]
  return text if len(text) <= 300 else text[:140] + " ... " + text[-140:]


def error_number(error: BaseException | None) -> int | None:
  """The operating system's number of an error, also of TensorStore's."""
  while error is not None:
    if isinstance(error, OSError) and error.errno:
      return error.errno
    if isinstance(error, TimeoutError):  # also when the clock jumps
      return errno.ETIMEDOUT
    found = re.search(r"os_error_code='(\d+)'", str(error))
    if found:
      return int(found[1])
    error = error.__cause__ or error.__context__
  return None
