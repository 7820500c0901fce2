"""This file says what the processor that runs the tests can do."""

from __future__ import annotations

import pytest
import torch

HAS_BF16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="the processor has no arithmetic in bfloat16")
