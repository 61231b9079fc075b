"""What may take longer than the other tests of `make test`; what does not is marked `thorough`."""

from __future__ import annotations

TEST_S = 5.0
"""How long a test of `make test` should take, s. Machines differ, so the end of a run says what took longer,
and nothing fails."""

THE_REAL_THING_ONCE = {
    "tests/strategies/test_golden.py::test_ray_makes_the_weights_it_always_made":
        "golden weights of every mode that waits, on Ray",
    "tests/engines/test_ray.py::test_a_signal_ends_a_private_cluster_and_leaves_a_record":
        "main.py with its own cluster: how a laptop runs it, and ctrl-C",
    "tests/running/test_resume_ray.py::test_a_killed_driver_on_ray_loses_no_update":
        "SIGKILL of a driver on Ray, and its resume",
    "tests/engines/test_ray_allreduce.py::TestOnRay::test_processes_killed_at_any_time_change_nothing":
        "SIGKILL of workers whose weights have no server",
    "tests/engines/test_ray_sharded.py::TestOnRay::test_a_slice_that_is_lost_is_that_of_the_last_snapshot":
        "SIGKILL of a parameter server",
    "tests/faults/test_ray_faults.py::test_a_wrong_suspicion_costs_work_and_no_bit":
        "two real processes compute one task",
    "tests/house/test_packaging.py::test_an_installed_dsgd_trains_and_reports_from_any_folder":
        "the wheel, installed",
    "tests/records/test_s3.py::test_another_machine_goes_on_with_a_run_that_was_cut_off":
        "two processes and S3 over HTTP",
    "tests/running/test_resume.py::test_a_process_that_is_killed_goes_on_from_the_command_line":
        "SIGKILL of main.py, and its resume",
    "tests/compare/test_experiments.py::test_any_number_of_processes_gives_the_weights_of_a_single_run":
        "the processes of an experiment",
    "tests/records/test_metrics.py::test_at_the_end_prometheus_holds_the_summary_on_ray":
        "a real Prometheus scrapes a run on Ray",
    "tests/cluster/test_observability.py::test_the_rules_give_the_values_and_alerts_that_their_tests_say":
        "promtool evaluates all rules and alerts",
    "tests/cluster/test_cluster_tooling.py::test_what_the_tools_read_is_what_main_py_writes":
        "the tools of the cluster read the output of a real run",
    "tests/strategies/test_adding_a_strategy.py::test_the_scaffolds_test_runs":
        "pytest in a user's folder",
    "tests/show/test_report_browser.py::test_a_report_fits_and_can_be_read":
        "Chromium draws a report",
}  # fmt: skip
"""Each test that may take longer, and what is real in it."""
