"""What may take longer than the other tests of `make test`; what does not is marked `thorough`."""

from __future__ import annotations

TEST_S = 5.0
"""How long a test of `make test` should take, s. Machines differ, so the end of a run says what took longer,
and nothing fails."""

THE_REAL_THING_ONCE = {
    "tests/engines/test_same_bytes.py::test_modes_in_step_have_the_same_bytes_on_both_engines":
        "the simulator's weights in every mode that waits, on Ray",
    "tests/engines/test_ray.py::test_a_signal_ends_a_private_cluster_and_leaves_a_record":
        "main.py with its own cluster: how a laptop runs it, and ctrl-C",
    "tests/running/test_resume_ray.py::test_a_killed_driver_on_ray_loses_no_update":
        "SIGKILL of a driver on Ray, and its resume",
    "tests/engines/test_ray_allreduce.py::TestOnRay::test_processes_killed_at_any_time_change_nothing":
        "SIGKILL of workers whose weights have no server",
    "tests/engines/test_ray_sharded.py::TestOnRay::test_a_slice_that_is_lost_is_that_of_the_last_snapshot":
        "SIGKILL of a parameter server",
    "tests/engines/test_ray_groups.py::TestOnRay::test_without_a_barrier_a_replay_has_the_bytes":
        "groups of ranks, one of which is killed",
    "tests/running/test_replay.py::test_a_run_rolls_forward_and_goes_on":
        "a replay hands over to real workers, which go on",
    "tests/running/test_packaging.py::test_an_installed_dsgd_trains_and_reports_from_any_folder":
        "the wheel, installed",
    "tests/records/test_s3.py::test_another_machine_goes_on_with_a_run_that_was_cut_off":
        "two processes and S3 over HTTP",
    "tests/running/test_resume.py::test_a_process_that_is_killed_goes_on_from_the_command_line":
        "SIGKILL of main.py, and its resume",
    "tests/compare/test_experiments.py::test_any_number_of_processes_gives_the_weights_of_a_single_run":
        "the processes of an experiment",
    "tests/cluster/test_observability.py::test_the_rules_give_the_values_and_alerts_that_their_tests_say":
        "promtool evaluates all rules and alerts",
    "tests/models/test_workload.py::test_both_engines_give_the_same_bytes":
        "a user's module, from a file that Ray's processes cannot import",
    "tests/records/test_metrics.py::test_at_the_end_prometheus_holds_the_summary_on_ray":
        "metrics of real workers over HTTP",
    "tests/show/test_report_browser.py::test_a_report_fits_and_can_be_read":
        "Chromium draws a report",
}  # fmt: skip
"""Each test that may take longer, and what is real in it."""

PLANTED_MISTAKES = {
    "tests/faults/test_dst_catches.py::test_a_planted_mistake_breaks_an_invariant":
        "mini-batches that a fault loses, repeats or skips break an invariant",
    "tests/engines/test_virtual_ray.py::test_a_planted_mistake_of_ray_breaks_an_invariant":
        "the same in Ray's engine, in virtual time",
    "tests/records/test_golden_catches.py::test_a_planted_bit_is_seen":
        "a bit differs in what a run leaves",
    "tests/strategies/test_adding_a_strategy.py::test_a_mistake_breaks_its_law":
        "a user's strategy breaks a law, which is named",
    "tests/theory/test_gate_catches.py::test_a_planted_mistake_turns_the_gate_red":
        "the simulator, a strategy or a formula disagrees with theory",
    "tests/theory/test_references.py::test_another_algorithm_is_noticed":
        "a strategy computes what its reference does not",
    "tests/theory/test_uncertainty.py::test_a_wrong_formula_looks_like_a_contradiction":
        "a closed form is wrong",
    "tests/teach/test_labs.py::test_wrong_options_fail_by_their_law":
        "wrong answers to labs: options",
    "tests/teach/test_labs.py::test_wrong_predictions_fail_and_missing_ones_are_open":
        "wrong answers to labs: predictions",
    "tests/teach/test_labs.py::test_a_mistake_is_told_by_its_law":
        "wrong answers to labs: strategies",
    "tests/cluster/test_cluster_tooling.py::test_whatever_goes_wrong_fails_the_check_that_names_it_and_is_cleaned_up":
        "a job fails on a cluster",
    "tests/cluster/test_cluster_tooling.py::test_a_job_that_looks_well_but_is_not_does_not_pass":
        "a job ends well and has done nothing, or too little",
}  # fmt: skip
"""Each test that plants mistakes, and what they look like. CONTRIBUTING.md says how many each tier finds."""
