"""How thoroughly hypothesis looks: `HYPOTHESIS_PROFILE=thorough` for an hour's worth, quick otherwise."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _ALWAYS, max_examples=20)
settings.register_profile("thorough", _ALWAYS, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
