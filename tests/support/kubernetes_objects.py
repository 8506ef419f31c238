"""Objects of Kubernetes: compared with the schemas of its releases, and with the models of operators."""

from __future__ import annotations

from functools import cache
from typing import Any

import kubernetes_validate
from kubernetes_validate import utils

Object = dict[str, Any]

OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()

# It parses megabytes of schemas anew for each object.
utils.schema_contents = cache(utils.schema_contents)


def assert_matches_schema(kubernetes_object: Object, *releases: str) -> None:
    """Compare with Kubernetes' own schemas, which allow no other fields; by default the oldest and the newest.

    An object of an operator is parsed by the models of its API, which must preserve every field.
    """
    group, kind = kubernetes_object["apiVersion"].split("/")[0], kubernetes_object["kind"]
    if group == "sparkoperator.k8s.io":
        from kubeflow_spark_api import models

        model = getattr(models, f"SparkV1beta2{kind}")
        assert _without_nulls(model.from_dict(kubernetes_object).to_dict()) == kubernetes_object
    elif group == "monitoring.coreos.com":
        from cloudcoil.models.prometheus_operator import v1

        parsed = getattr(v1, kind).model_validate(kubernetes_object)
        assert parsed.model_dump(mode="json", by_alias=True, exclude_unset=True) == kubernetes_object
    else:
        for release in releases or (OLDEST, NEWEST):
            kubernetes_validate.validate(kubernetes_object, release, strict=True)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
