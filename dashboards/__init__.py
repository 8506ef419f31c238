"""The Grafana dashboards and Prometheus alert rules, as the package `grouptrail.dashboards`."""
