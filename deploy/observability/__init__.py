"""Prometheus rules, Alertmanager routing and Grafana dashboards, and the means to try them on one machine."""
