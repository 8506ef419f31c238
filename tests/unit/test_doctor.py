"""The versions that `grouptrail doctor` accepts."""

from __future__ import annotations

import pytest

from grouptrail.config import Config
from grouptrail.runtime import doctor

INSTALLED = {"pyspark": "4.2.0", "delta-spark": "4.4.0", "deltalake": "1.6.6", "kafka-python": "3.0.12"}
REQUIRED = ["pyspark==4.2.0", "delta-spark==4.4.0", "deltalake>=1.6", "kafka-python[lz4]>=3.0"]


@pytest.mark.parametrize(
    ("installed", "state", "remedy"),
    [
        ({}, "ok", ""),
        ({"pyspark": "4.3.0"}, "warn", "pip install 'pyspark==4.2.0'"),
        ({"delta-spark": "4.4.1", "pyspark": "4.3.0"}, "warn", "pip install 'pyspark==4.2.0' 'delta-spark==4.4.0'"),
        ({"deltalake": "1.5.9"}, "FAIL", "pip install 'deltalake>=1.6'"),
        ({"kafka-python": "2.3.1"}, "FAIL", "pip install 'kafka-python>=3.0'"),
    ],
)
def test_check_versions_installed_packages_are_compared_with_the_requirements(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], state: str, remedy: str
) -> None:
    monkeypatch.setattr(doctor, "version", (INSTALLED | installed).__getitem__)
    monkeypatch.setattr(doctor, "requires", lambda _package: [*REQUIRED, "mypy>=9; extra == 'dev'"])
    [finding] = doctor.check_versions(Config())
    assert finding.status == state
    assert finding.text.endswith(remedy)


@pytest.mark.parametrize(
    ("minutes", "status", "text"),
    [
        (10_080.0, "ok", "as assumed"),
        (None, "ok", "is not shown (it needs DESCRIBE_CONFIGS on the cluster): history assumes 10080"),
        (1_440.0, "warn", "for 1440 min, history assumes 10080: set history.offsets_retention_minutes = 1440"),
    ],
)
def test_retention_of_the_brokers_is_compared_with_the_setting(minutes: float | None, status: str, text: str) -> None:
    finding = doctor._retention(minutes, 10_080.0)
    assert (finding.status, text in finding.text) == (status, True)
