"""How thoroughly hypothesis looks: `HYPOTHESIS_PROFILE=thorough` for an hour's worth, quick otherwise."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_ALWAYS = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=20, **_ALWAYS)
settings.register_profile("thorough", max_examples=1_000, **_ALWAYS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
