# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a program is traced for, which need not be the machine it is traced on.

Ahead of time, the current mesh knows; without one, the process's own devices.
"""

import jax


def platform() -> str:
  """`tpu`, `gpu` or `cpu`."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  name = jax.default_backend() if device is None else device.platform
  return "gpu" if name in ("cuda", "rocm") else name


def device_kind() -> str:
  """Such as `TPU v6 lite`."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.devices()[0].device_kind if device is None else device.device_kind
