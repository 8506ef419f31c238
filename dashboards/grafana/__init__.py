"""The Grafana dashboards as code: `make dashboards` builds them into dashboards/built/."""
